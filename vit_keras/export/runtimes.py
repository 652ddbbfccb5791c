"""Run one exported file in its own runtime, without Keras and without this package.

Run as a script, `python -I runtimes.py FORMAT FILE [FOLDER …]`, it reads tasks from standard input and answers on
standard output, one line of JSON each: `{"run": inputs.npz, "into": outputs.npz, "signature": null}` runs the file on
each array of the first file, `{"time": n}` runs the last inputs `n` times more. `{}` ends it. The first line that it
prints describes the file: its input's dtype and shape, and the version of the runtime. Modules that are not found
otherwise are searched for in the folders.
"""

from __future__ import annotations

import base64
import functools
import json
import os
import sys
import time
from typing import Any

if __name__ == "__main__":  # NumPy may be there too
    sys.path += [place for place in sys.argv[3:] if place not in sys.path]

import numpy as np


class Runtime:
    """An opened file: the version of what runs it, and dtype and shape of its input."""

    def __init__(self, version: str, dtype: str, shape: list[int | None]):
        self.version: str = version
        self.dtype: str = dtype
        self.shape: list[int | None] = shape
        self.notes: list[str] = []


class SavedModel(Runtime):
    """TensorFlow's SavedModel; files of images are given in base64."""

    def __init__(self, path: Any):
        import tensorflow as tf

        self._tf, self._model = tf, tf.saved_model.load(path)
        self._signatures = self._model.signatures
        first = "images" if "images" in self._signatures else "pixels"
        self._default = self._signatures[first]
        spec = self._input(self._default)
        super().__init__(f"tensorflow {tf.__version__}", spec.dtype.name, spec.shape.as_list())

    @staticmethod
    def _input(function):
        return next(iter(function.structured_input_signature[1].values()))

    def __call__(self, inputs: Any, signature: str | None = None) -> Any:
        function = self._signatures[signature] if signature else self._default
        spec = self._input(function)
        if spec.dtype == self._tf.string:  # NumPy's strings of bytes would lose zeros at their ends
            inputs = [base64.b64decode(text) for text in inputs]
        tensor = self._tf.constant(inputs, spec.dtype)
        found = function(**{spec.name: tensor})
        return {name: value.numpy() for name, value in found.items()}


class Onnx(Runtime):
    """ONNX in onnxruntime."""

    def __init__(self, path: Any):
        import onnxruntime

        self._session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        (only,) = self._session.get_inputs()
        self._input, self._names = only.name, [output.name for output in self._session.get_outputs()]
        dtype = {"tensor(uint8)": "uint8"}.get(only.type, "float32")
        shape = [size if isinstance(size, int) else None for size in only.shape]
        super().__init__(f"onnxruntime {onnxruntime.__version__}", dtype, shape)

    def __call__(self, inputs: Any, signature: str | None = None) -> Any:
        return dict(zip(self._names, self._session.run(None, {self._input: inputs})))


class OpenVino(Runtime):
    """OpenVINO's IR; computes in float32, and with the signature "default" in what the runtime chooses by itself."""

    def __init__(self, path: Any):
        import openvino

        self._core = openvino.Core()
        self._model = self._core.read_model(path)
        self._compiled = {}
        (only,) = self._model.inputs
        dtype = "uint8" if only.element_type.to_string() == "u8" else "float32"
        shape = [None if size.is_dynamic else size.get_length() for size in only.partial_shape]
        super().__init__(f"openvino {openvino.__version__.partition('-')[0]}", dtype, shape)

    def __call__(self, inputs: Any, signature: str | None = None) -> Any:
        if signature not in self._compiled:
            hint = {} if signature else {"INFERENCE_PRECISION_HINT": "f32"}
            self._compiled[signature] = self._core.compile_model(self._model, "CPU", hint)
        values = self._compiled[signature]([inputs]).values()
        return {output.get_any_name(): value for output, value in zip(self._model.outputs, values)}


class LiteRt(Runtime):
    """LiteRT (TensorFlow Lite)."""

    def __init__(self, path: Any):
        import importlib.metadata

        from ai_edge_litert.interpreter import Interpreter

        self._interpreter = Interpreter(path, num_threads=os.cpu_count())
        (only,) = self._interpreter.get_input_details()
        shape = [None if size == -1 else int(size) for size in only["shape_signature"]]
        version = importlib.metadata.version("ai-edge-litert")
        super().__init__(f"ai-edge-litert {version}", np.dtype(only["dtype"]).name, shape)
        self._signature = next(iter(self._interpreter.get_signature_list()))
        self._input = self._interpreter.get_signature_list()[self._signature]["inputs"][0]

    def __call__(self, inputs: Any, signature: str | None = None) -> Any:
        runner = self._interpreter.get_signature_runner(self._signature)
        return runner(**{self._input: inputs})


class Torch(Runtime):
    """A program of torch.export."""

    def __init__(self, path: Any):
        import torch

        self._torch = torch
        program = torch.export.load(path)
        self._module = program.module()
        name = next(iter(program.graph_signature.user_inputs))
        value = next(node.meta["val"] for node in program.graph.nodes if node.name == name)
        shape = [size if isinstance(size, int) else None for size in value.shape]
        super().__init__(f"torch {torch.__version__}", str(value.dtype).removeprefix("torch."), shape)

    def __call__(self, inputs: Any, signature: str | None = None) -> Any:
        with self._torch.inference_mode():
            return {name: value.numpy() for name, value in self._module(self._torch.from_numpy(inputs)).items()}


class Page(Runtime):
    """A page in headless Chromium, which asks no network."""

    compute = """async ([text, dimensions]) => {
        const pixels = Uint8Array.from(atob(text), (c) => c.charCodeAt(0)), start = performance.now();
        const outputs = await window.compute(pixels, dimensions), seconds = (performance.now() - start) / 1000;
        const read = (data) => new Promise((done) => {
            const reader = new FileReader();
            reader.onload = () => done(reader.result);
            reader.readAsDataURL(new Blob([data]));
        });
        for (const [name, { data, dims }] of Object.entries(outputs)) outputs[name] = [await read(data), dims];
        return { outputs, seconds };
    }"""

    def __init__(self, path: Any):
        import atexit
        import pathlib
        import shutil

        from playwright.sync_api import Error, sync_playwright

        play = sync_playwright().start()
        atexit.register(play.stop)
        own = play.chromium.executable_path
        installed = map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))
        chromium = own if os.path.exists(own) else next(filter(None, installed), None)
        if chromium is None:
            raise OSError("there is no Chromium")
        try:
            browser = play.chromium.launch(executable_path=chromium)
        except Error as error:
            raise OSError(f"{chromium} does not start: {error}") from error
        context = browser.new_context(offline=True)
        self._tab = context.new_page()
        self._tab.set_default_timeout(0)
        self._tab.goto(pathlib.Path(path).absolute().as_uri())
        version = f"{self._tab.evaluate('window.opened')} in Chromium {browser.version}"
        super().__init__(version, "uint8", [None, None, None, 3])

    def __call__(self, inputs: Any, signature: str | None = None) -> Any:
        found = self._compute(inputs)["outputs"]
        decoded = {name: (base64.b64decode(data.partition(",")[2]), shape) for name, (data, shape) in found.items()}
        return {name: np.frombuffer(data, "<f4").reshape(shape) for name, (data, shape) in decoded.items()}

    def seconds(self, inputs: Any, signature: str | None = None) -> Any:
        return self._compute(inputs)["seconds"]

    def _compute(self, inputs):
        return self._tab.evaluate(self.compute, [base64.b64encode(inputs).decode(), inputs.shape])


class OnnxOfPage(Onnx):
    """The ONNX file in a page, in onnxruntime."""

    def __init__(self, path: Any, reason: str):
        import gzip
        import re

        with open(path, encoding="utf-8") as file:
            packed = re.search('id="model">([^<]*)<', file.read())
        if packed is None:
            raise ValueError("The page has no model in it: vit_keras.export did not write it.")
        super().__init__(gzip.decompress(base64.b64decode(packed[1])))
        self.notes.append(f"The page was not run: {reason}. The ONNX file in it was run in onnxruntime instead.")


def html(path: Any) -> Any:
    """Return a page at work in a browser; without one, the ONNX file in it."""
    try:
        return Page(path)
    except (ImportError, OSError) as error:
        return OnnxOfPage(path, " ".join(str(error).split())[:300])


RUNTIMES = {
    "saved_model": SavedModel,
    "onnx": Onnx,
    "openvino": OpenVino,
    "litert": LiteRt,
    "torch": Torch,
    "html": html,
}


def seconds(run: Any, *arguments: Any) -> float:
    """Return how long a call takes."""
    start = time.perf_counter()
    run(*arguments)
    return time.perf_counter() - start


def work(format: Any, path: Any, lines: Any, answer: Any) -> None:
    """Open a file and answer tasks; see the top of this module."""
    runtime = RUNTIMES[format](path)
    others = {"vit_keras"} if format == "saved_model" else {"vit_keras", "keras"}  # TensorFlow imports Keras itself
    alone = not others & set(sys.modules)
    about = {"version": runtime.version, "dtype": runtime.dtype, "shape": runtime.shape, "alone": alone}
    answer({**about, "notes": runtime.notes})
    arrays, signature = [], None
    for line in lines:
        task = json.loads(line)
        if "run" in task:
            with np.load(task["run"]) as stored:
                arrays = [np.ascontiguousarray(stored[name]) for name in stored.files]
            signature = task.get("signature")
            outputs = {}
            for number, inputs in enumerate(arrays):
                for name, value in runtime(inputs, signature).items():
                    array = np.asarray(value)
                    is_text = array.dtype == object  # names of classes, as bytes
                    outputs[f"{number}/{name}"] = np.char.decode(array.astype(bytes)) if is_text else array
            np.savez(task["into"], **outputs)
            answer({})
        elif "time" in task:
            clock = getattr(runtime, "seconds", functools.partial(seconds, runtime))
            spent = sum(clock(inputs, signature) for _ in range(task["time"]) for inputs in arrays)
            answer({"seconds": spent / task["time"]})
        else:
            return


def main() -> None:
    """Answer on the real standard output, where no library can write in between."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def answer(found):
        print(json.dumps(found), file=answers, flush=True)

    try:
        work(sys.argv[1], sys.argv[2], sys.stdin, answer)
    except Exception as error:
        answer({"error": f"{type(error).__name__}: {' '.join(str(error).split())[:2000]}"})


if __name__ == "__main__":
    main()

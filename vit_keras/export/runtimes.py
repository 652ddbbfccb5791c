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


class SavedModel:
    """TensorFlow's SavedModel; files of images are given in base64."""

    tf: Any
    version: str

    def __init__(self, path: Any):
        import tensorflow as tf

        self.tf, self.version = tf, f"tensorflow {tf.__version__}"
        self.model: Any = tf.saved_model.load(path)
        self.signatures: Any = self.model.signatures
        first = "images" if "images" in self.signatures else "pixels"
        self.default: Any = self.signatures[first]
        spec = self._input(self.default)
        self.dtype: str = spec.dtype.name
        self.shape: list[int | None] = spec.shape.as_list()

    @staticmethod
    def _input(function):
        return next(iter(function.structured_input_signature[1].values()))

    def __call__(self, inputs: Any, signature: str | None = None) -> Any:
        function = self.signatures[signature] if signature else self.default
        spec = self._input(function)
        if spec.dtype == self.tf.string:  # NumPy's strings of bytes would lose zeros at their ends
            inputs = [base64.b64decode(text) for text in inputs]
        tensor = self.tf.constant(inputs, spec.dtype)
        found = function(**{spec.name: tensor})
        return {name: value.numpy() for name, value in found.items()}


class Onnx:
    """ONNX in onnxruntime."""

    input: Any
    names: list[Any]

    def __init__(self, path: Any):
        import onnxruntime

        self.version: str = f"onnxruntime {onnxruntime.__version__}"
        self.session: Any = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        (only,) = self.session.get_inputs()
        self.input, self.names = only.name, [output.name for output in self.session.get_outputs()]
        self.dtype: str = {"tensor(uint8)": "uint8"}.get(only.type, "float32")
        self.shape: list[int | None] = [size if isinstance(size, int) else None for size in only.shape]

    def __call__(self, inputs: Any, signature: str | None = None) -> Any:
        return dict(zip(self.names, self.session.run(None, {self.input: inputs})))


class OpenVino:
    """OpenVINO's IR; computes in float32, and with the signature "default" in what the runtime chooses by itself."""

    def __init__(self, path: Any):
        import openvino

        self.version: str = f"openvino {openvino.__version__.partition('-')[0]}"
        self.core: Any = openvino.Core()
        self.model: Any = self.core.read_model(path)
        self.compiled: dict[Any, Any] = {}
        (only,) = self.model.inputs
        self.dtype = "uint8" if only.element_type.to_string() == "u8" else "float32"
        self.shape: list[Any | None] = [None if size.is_dynamic else size.get_length() for size in only.partial_shape]

    def __call__(self, inputs: Any, signature: str | None = None) -> Any:
        if signature not in self.compiled:
            hint = {} if signature else {"INFERENCE_PRECISION_HINT": "f32"}
            self.compiled[signature] = self.core.compile_model(self.model, "CPU", hint)
        values = self.compiled[signature]([inputs]).values()
        return {output.get_any_name(): value for output, value in zip(self.model.outputs, values)}


class LiteRt:
    """LiteRT (TensorFlow Lite)."""

    def __init__(self, path: Any):
        import importlib.metadata

        from ai_edge_litert.interpreter import Interpreter

        self.version: str = f"ai-edge-litert {importlib.metadata.version('ai-edge-litert')}"
        self.interpreter: Any = Interpreter(path, num_threads=os.cpu_count())
        (only,) = self.interpreter.get_input_details()
        self.dtype = np.dtype(only["dtype"]).name
        self.shape: list[int | None] = [None if size == -1 else int(size) for size in only["shape_signature"]]
        self.signature: str = next(iter(self.interpreter.get_signature_list()))
        self.input: Any = self.interpreter.get_signature_list()[self.signature]["inputs"][0]

    def __call__(self, inputs: Any, signature: str | None = None) -> Any:
        runner = self.interpreter.get_signature_runner(self.signature)
        return runner(**{self.input: inputs})


class Torch:
    """A program of torch.export."""

    torch: Any
    version: str

    def __init__(self, path: Any):
        import torch

        self.torch, self.version = torch, f"torch {torch.__version__}"
        program = torch.export.load(path)
        self.module: Any = program.module()
        name = next(iter(program.graph_signature.user_inputs))
        value = next(node.meta["val"] for node in program.graph.nodes if node.name == name)
        self.dtype: str = str(value.dtype).removeprefix("torch.")
        self.shape: list[int | None] = [size if isinstance(size, int) else None for size in value.shape]

    def __call__(self, inputs: Any, signature: str | None = None) -> Any:
        with self.torch.inference_mode():
            return {name: value.numpy() for name, value in self.module(self.torch.from_numpy(inputs)).items()}


class Page:
    """A page in headless Chromium, which asks no network."""

    dtype: str = "uint8"
    shape: list[int | None] = [None, None, None, 3]
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
        self.tab: Any = context.new_page()
        self.tab.set_default_timeout(0)
        self.tab.goto(pathlib.Path(path).absolute().as_uri())
        self.version: str = f"{self.tab.evaluate('window.opened')} in Chromium {browser.version}"

    def __call__(self, inputs: Any, signature: str | None = None) -> Any:
        found = self._compute(inputs)["outputs"]
        decoded = {name: (base64.b64decode(data.partition(",")[2]), shape) for name, (data, shape) in found.items()}
        return {name: np.frombuffer(data, "<f4").reshape(shape) for name, (data, shape) in decoded.items()}

    def seconds(self, inputs: Any, signature: str | None = None) -> Any:
        return self._compute(inputs)["seconds"]

    def _compute(self, inputs):
        return self.tab.evaluate(self.compute, [base64.b64encode(inputs).decode(), inputs.shape])


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
        self.notes: list[str] = [f"The page was not run: {reason}. The ONNX file in it was run in onnxruntime instead."]


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
    answer({**about, "notes": getattr(runtime, "notes", [])})
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

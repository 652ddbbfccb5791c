"""Define the models, the libraries with the ways to call them, and the cells of each suite, as data."""

from __future__ import annotations

import dataclasses
from fnmatch import fnmatchcase
from typing import NamedTuple

CLASSES = 1000


class Architecture(NamedTuple):
    """The sizes of a ViT with patches of 16 × 16 pixels."""

    layers: int
    hidden: int
    heads: int
    mlp: int
    image_size: int = 224


MODELS = {
    "Ti/16": Architecture(12, 192, 3, 768),
    "S/16": Architecture(12, 384, 6, 1536),
    "B/16": Architecture(12, 768, 12, 3072),
    "L/16": Architecture(24, 1024, 16, 4096, image_size=384),
}


class Library(NamedTuple):
    """A library on a backend, with its own process in each cell.

    Attributes:
        name: Its name in the tables.
        backend: Keras backend, the framework of another library, or the precision of a runtime.
        module: Its module in `benchmarks.contenders`.
        environment: Its key in `environments.ENVIRONMENTS`.
        styles: For each suite the ways to call it. The first is measured in a process that has done nothing else, so
            that its peak memory and first call are its own; those of the others contain what came before.
    """

    name: str
    backend: str
    module: str
    environment: str
    styles: dict[str, tuple[str, ...]]

    def contenders(self, suite: str, patterns: tuple[str, ...] = ("*",)) -> dict[str, str]:
        """Return the styles of a suite whose full names fit one of the patterns, `{full name: style}`."""
        names = {f"{self.name}/{self.backend}/{style}": style for style in self.styles.get(suite, ())}
        return {name: style for name, style in names.items() if any(fnmatchcase(name, p) for p in patterns)}


OURS = "vit_keras"
_CALLS = ("compiled", "predict", "call")
_TORCH_CALLS = ("no_grad", "predict", "call")
_KERAS = {"inference": _CALLS, "training": ("train_on_batch",), "startup": ("weights.h5",)}
_KERAS_TORCH = {**_KERAS, "inference": _TORCH_CALLS}
_FILES = {"startup": ("weights.h5", "npz")}
_MAPS = {"attention": ("attention_map",), "features": ("read+predict",)}
_TORCH = {"training": ("eager",), "startup": ("safetensors",), "features": ("read+eager",)}
_GEMM = {"inference": ("matmul",), "training": ("matmul",)}

LIBRARIES = (
    Library(OURS, "tensorflow", "ours", "tensorflow", {**_KERAS, **_FILES, **_MAPS}),
    Library(OURS, "jax", "ours", "jax", {**_KERAS, **_FILES, **_MAPS}),
    Library(OURS, "torch", "ours", "torch", {**_KERAS_TORCH, **_FILES, **_MAPS}),
    Library(
        OURS, "openvino", "ours", "openvino", {**_MAPS, "inference": ("predict", "call"), "startup": ("weights.h5",)}
    ),
    Library("vit-keras-0.2", "tensorflow", "vit_keras_0_2", "vit-keras-0.2", {**_KERAS, **_FILES, **_MAPS}),
    Library("keras-hub", "tensorflow", "hub", "keras-hub", {**_KERAS, "features": ("read+predict",)}),
    Library("keras-hub", "jax", "hub", "keras-hub", {**_KERAS, "features": ("read+predict",)}),
    Library("keras-hub", "torch", "hub", "keras-hub", {**_KERAS_TORCH, "features": ("read+predict",)}),
    Library("tfvit", "tensorflow", "tf_vit", "tensorflow", _KERAS),
    Library("timm", "torch", "torch_image_models", "torch", {**_TORCH, "inference": ("eager", "compile")}),
    Library("transformers", "torch", "hugging_face", "torch", {**_TORCH, "inference": ("eager",)}),
    Library("onnxruntime", "float32", "onnx_runtime", "runtimes", {"inference": ("session",), "startup": ("onnx",)}),
    Library("openvino", "float32", "open_vino", "runtimes", {"inference": ("session",), "startup": ("onnx",)}),
    Library("openvino", "bfloat16", "open_vino", "runtimes", {"inference": ("session",), "startup": ("onnx",)}),
    Library("bare-keras", "tensorflow", "bare", "tensorflow", {"startup": ("weights.h5",)}),
    Library("bare-keras", "jax", "bare", "jax", {"startup": ("weights.h5",)}),
    Library("bare-keras", "torch", "bare", "torch", {"startup": ("weights.h5",)}),
    Library("gemm", "torch", "gemm", "torch", _GEMM),
    Library("gemm", "tensorflow", "gemm", "tensorflow", _GEMM),
)


@dataclasses.dataclass(frozen=True)
class Cell:
    """One comparison: a model, an input, and the contenders.

    Attributes:
        suite: The name of the suite.
        model: A key of `MODELS`.
        batch: Images of a call.
        image_size: Pixels of a side; 0 for the model's own.
        contenders: Patterns of full names such as `"keras-hub/*/compiled"`.
        rounds: How often each contender is timed.
        images: Files of the folder in the suite `features`.
    """

    suite: str
    model: str = "B/16"
    batch: int = 1
    image_size: int = 0
    contenders: tuple[str, ...] = ("*",)
    rounds: int = 10
    images: int = 128

    def __post_init__(self) -> None:
        if not self.image_size:
            object.__setattr__(self, "image_size", MODELS[self.model].image_size)

    @property
    def title(self) -> str:
        """A title such as `B/16, 224 px, batch 8`."""
        batch = f"{self.images} files, batch {self.batch}" if self.suite == "features" else f"batch {self.batch}"
        return f"{self.model}, {self.image_size} px, {batch}"

    @property
    def parameters(self) -> int:
        """Number of parameters of the model, with its head unless the suite is `features`."""
        layers, hidden, _, mlp, _ = MODELS[self.model]
        tokens = (self.image_size // 16) ** 2 + 1
        block = 4 * hidden * (hidden + 1) + 2 * hidden * mlp + mlp + hidden + 4 * hidden
        head = 0 if self.suite == "features" else (hidden + 1) * CLASSES
        return layers * block + (16 * 16 * 3 + 1 + tokens + 1 + 2) * hidden + head

    @property
    def gflop(self) -> float:
        """Floating-point operations of one call in matrix products, in 10⁹; a training step counts as three calls."""
        layers, hidden, _, mlp, _ = MODELS[self.model]
        patches = (self.image_size // 16) ** 2
        tokens = patches + 1
        block = 4 * tokens * hidden**2 + 2 * tokens * hidden * mlp + 2 * tokens**2 * hidden
        image = layers * block + patches * 16 * 16 * 3 * hidden + hidden * CLASSES
        images = {"features": self.images, "startup": 1}.get(self.suite, self.batch)
        return 2e-9 * image * images * (3 if self.suite == "training" else 1)


_GRAPHS = ("*/compiled", "*/no_grad", "*/eager", "*/session", "gemm/*")
_NO_COMPILE = (*(f"{library.name}/*" for library in LIBRARIES if library.name != "timm"), "timm/*/eager")
_FEW = (
    "vit_keras/*/compiled",
    "vit_keras/*/no_grad",
    "vit_keras/tensorflow/predict",
    "vit-keras-0.2/*/compiled",
    "vit-keras-0.2/*/predict",
    "keras-hub/tensorflow/compiled",
    "keras-hub/tensorflow/predict",
    "timm/*/eager",
    "onnxruntime/*",
    "gemm/torch/*",
)
_LONG = (
    *("vit_keras/*/compiled", "vit_keras/*/no_grad", "vit-keras-0.2/*/compiled", "keras-hub/tensorflow/compiled"),
    *("timm/*/eager", "transformers/*", "onnxruntime/*", "gemm/torch/*"),
)
_TRAINERS = ("vit_keras/*", "vit-keras-0.2/*", "keras-hub/*", "timm/*", "transformers/*", "gemm/torch/*")

SUITES: dict[str, tuple[Cell, ...]] = {
    "inference": (
        Cell("inference", "B/16"),
        Cell("inference", "Ti/16", contenders=_NO_COMPILE),
        Cell("inference", "S/16", contenders=(*_GRAPHS, "*/predict")),
        Cell("inference", "B/16", batch=8, rounds=5, contenders=(*_GRAPHS, "*/tensorflow/predict")),
        Cell("inference", "S/16", batch=32, rounds=5, contenders=_GRAPHS),
        Cell("inference", "S/16", image_size=384, rounds=8, contenders=_GRAPHS),
        Cell("inference", "S/16", image_size=512, rounds=6, contenders=_GRAPHS),
        Cell("inference", "S/16", image_size=1024, rounds=5, contenders=_LONG),
        Cell("inference", "L/16", rounds=5, contenders=_GRAPHS),
    ),
    "training": (
        Cell("training", "S/16", batch=8, rounds=8),
        Cell("training", "B/16", batch=8, rounds=5, contenders=_TRAINERS),
    ),
    "startup": (Cell("startup", "Ti/16", rounds=5),),
    "attention": (Cell("attention", "Ti/16"), Cell("attention", "B/16")),
    "features": (Cell("features", "Ti/16", batch=32, rounds=5),),
}

# The cells of `--quick`.
QUICK: dict[str, tuple[Cell, ...]] = {
    "inference": (
        Cell("inference", "Ti/16", rounds=6, contenders=_FEW),
        Cell("inference", "B/16", rounds=6, contenders=_FEW),
    ),
    "training": (Cell("training", "Ti/16", batch=8, rounds=5, contenders=("vit_keras/*", "timm/*", "gemm/torch/*")),),
    "startup": (Cell("startup", "Ti/16", rounds=2, contenders=("bare-keras/tensorflow/*", "*/tensorflow/weights.h5")),),
    "attention": (Cell("attention", "Ti/16", rounds=5, contenders=("*/tensorflow/*",)),),
    "features": (Cell("features", "Ti/16", batch=32, rounds=2, images=32, contenders=("*/tensorflow/*", "timm/*")),),
}

"""Open whole models, including those of vit-keras 0.1 and 0.2.

`keras.models.load_model` opens models that this package saved, once `vit_keras` is imported. Models of vit-keras 0.x
have a Lambda layer: Python bytecode that Keras rightly refuses to run. Those of 0.1 also have slashes in layer names,
which Keras 3 does not allow. `load_model` opens them without running any code.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shutil
import tempfile
import threading
import traceback
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import keras

from .._internal import finite
from .._internal.bounds import LIMIT_INPUT, LIMIT_LAYERS, LIMIT_TEXT, shortened, too_many, too_much
from .._internal.validate import expanded, path_text
from ..anatomy.parts import keeper
from ..backend.keras_internals import OPTIMIZERS_OF_TORCH, flat_layers, own_jit_compile
from . import keras_hub_json, orbax
from .readers.sniff import Kind, is_of_keras_2, keras_2_only, kind_of


def load_model(
    filepath: str | os.PathLike[str],
    custom_objects: dict[str, Any] | None = None,
    compile: bool = True,
    safe_mode: bool = True,
) -> keras.Model:
    """Open a saved model: `.keras` or `.h5`, of this package or of vit-keras 0.1 and 0.2, or a folder of Orbax.

    Arguments are those of `keras.models.load_model`. A model of vit-keras 0.x gives the outputs it gave there;
    saved again, it opens with Keras' own function too.

    Args:
        filepath: The file; the folder that `training.finetune` wrote, to open its `model.keras`; or the folder that
            `keras.callbacks.OrbaxCheckpoint` wrote on any number of devices, to open its last checkpoint.
        custom_objects: Additional classes by name; the classes of this package are known.
        compile: Whether to compile the model as it was when it was saved, except for `jit_compile`, which the backend
            chooses.
        safe_mode: Whether to refuse Lambda layers. The one of vit-keras 0.x is replaced, not run.

    Returns:
        The model.

    Warns:
        UserWarning: Some of its weights are infinite or undefined.

    Raises:
        FileNotFoundError: The file does not exist.
        TypeError: `filepath` is not a path.
        ValueError: The file is not a Keras model, is damaged, names an unknown class, or claims more data than it can
            hold.

    Example:
        >>> model = load_model("vit_keras_0_2.keras")  # doctest: +SKIP
    """
    path = _of_run(expanded(path_text(filepath, "filepath", "the path of a saved model (.keras, .h5)")))
    if orbax.is_checkpoint(path):
        return _from_orbax(path, custom_objects, compile, safe_mode)
    if is_of_keras_2(path):
        raise ValueError(keras_2_only(path))
    if not os.path.isfile(path):
        raise FileNotFoundError(f"There is no model file at {path}.")
    kind = kind_of(path)
    if kind not in (Kind.KERAS, Kind.HDF5):
        raise ValueError(f"{path} is not a Keras model, neither a .keras archive nor an HDF5 file: it is {kind.words}.")
    config, is_archive = None, kind is Kind.KERAS
    try:
        config, keras_2 = _read_keras(path) if is_archive else _read_h5(path)
        if config is None:
            raise ValueError("No model config found in the file")
        _check_sizes((config or {}).get("config"))
        _check_layers(config)
        modern = _modernise(config, keras_2)
        with tempfile.TemporaryDirectory() as folder:
            suffixes = (".keras",) if is_archive else (".h5", ".hdf5")  # by which Keras knows the format
            as_it_is = modern == config and path.suffix in suffixes
            opened = path if as_it_is else Path(folder, f"model{suffixes[0]}")
            if opened is not path:
                (_write_keras if is_archive else _write_h5)(path, opened, modern, keras_2)
            with _bounded_variables(path.stat().st_size):
                model = keras.models.load_model(
                    opened, custom_objects=custom_objects, compile=compile, safe_mode=safe_mode
                )
            own_jit_compile(model)
            _forget_other_heads(model)
    except Exception as error:  # zipfile, json, h5py and Keras raise many types
        raise ValueError(_why_not(path, error, config, custom_objects, compile)) from error
    finite.check_model(path, model)
    return model


def _forget_other_heads(model: keras.Model) -> None:
    """Drop the classes of heads that are not in a file, so that no new head of the same name has them."""
    inside = {layer.name for layer in flat_layers(model)}
    classes = keeper(model).classes
    for head in classes.keys() - inside:
        del classes[head]


def _from_orbax(path, custom_objects, compile, safe_mode):
    config, state = orbax.read(path)
    config = _modernise(config)
    try:
        _check_sizes(config.get("config"))
        _check_layers(config)
        config = config if compile else {**config, "compile_config": None}
        model = keras.saving.deserialize_keras_object(config, custom_objects=custom_objects, safe_mode=safe_mode)
        orbax.assign(state, model)
        own_jit_compile(model)
        _forget_other_heads(model)
    except Exception as error:
        raise ValueError(_why_not(path, error, config, custom_objects, compile)) from error
    finite.check_model(path, model)
    return model


_COUNTING = threading.RLock()


@contextlib.contextmanager
def _bounded_variables(size: int) -> Iterator[None]:
    """Raise an error before this thread creates more variables than a file of this size can fill."""
    # A model is built before its weights are read. Layers of harmless sizes can together make a huge variable, which
    # shows only when they are built. The file has all values, so it cannot be much smaller than the variables.
    thread, claimed, problem = threading.get_ident(), 0, None

    def make_bounded(variable, initializer, shape=None, *args, **kwargs):
        nonlocal claimed, problem
        if threading.get_ident() == thread:
            claimed += 4 * math.prod(shape or ())
            problem = problem or too_much(claimed, size)
            if problem:
                raise ValueError(problem)
        make(variable, initializer, shape, *args, **kwargs)

    owner = next(kind for kind in keras.Variable.__mro__ if "__init__" in vars(kind))
    with _COUNTING:
        make = owner.__init__
        owner.__init__ = make_bounded
        try:
            yield
        except Exception as error:
            if problem:  # Keras writes the whole configuration before it
                raise ValueError(f"it {problem}") from error
            raise
        finally:
            owner.__init__ = make


def _why_not(path: Path, error: Exception, config: Any, custom_objects: Mapping[str, Any] | None, compile: bool) -> str:
    """Return why a model cannot be opened; Keras' own message can be as long as the file."""
    unknown = _unknown_class(config, custom_objects) if isinstance(error, TypeError) else None
    if unknown is not None and keras_hub_json.tower(config):
        return (
            f"{path} is a model of KerasHub. Import keras_hub first, or open it with vit_keras.open_model, which reads "
            "its weights if they are not quantized."
        )
    if unknown is not None:
        rest = {**config, "compile_config": None} if isinstance(config, Mapping) else config
        layers_known = compile and _unknown_class(rest, custom_objects) is None
        return (
            f"{path} names {shortened(unknown)}, which is not known here; nothing was imported. Import the module "
            "that defines it, with @keras.saving.register_keras_serializable() before it, or pass custom_objects="
            f"{', or pass compile=False' if layers_known else ''}."
        )
    text = f"{path} cannot be opened as a Keras model: {shortened(str(error) or type(error).__name__)}"
    if compile and isinstance(error, (TypeError, ValueError)) and _is_of_compiling(error):
        hint = "If a loss, metric or optimizer of yours is missing, pass it as custom_objects=, or pass compile=False."
        text = f"{text.rstrip('.')}{'' if text.endswith('…') else '.'} {hint}"  # Keras' words may not name it
    return text


def _is_of_compiling(error: BaseException) -> bool:
    """Return whether an error comes from what a file says of the loss, the metrics and the optimizer."""
    frames = (frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__))
    return any("compile" in code.co_name and code.co_filename != __file__ for code in frames)


def is_whole_model(model: Any) -> bool:
    """Return whether a path is a whole Keras model and not only weights; by its name if there is no file."""
    # A model of KerasHub is read as a file of weights.
    if not isinstance(model, (str, os.PathLike)):
        return False
    path = _of_run(Path(os.path.expanduser(model)))
    if not os.path.exists(path):
        return path.suffix in (".keras", ".h5", ".hdf5") and "://" not in os.fspath(model)
    if not os.path.isfile(path):
        return orbax.is_checkpoint(path)
    kind = kind_of(path)
    if kind is Kind.HDF5:
        with _hdf5(path) as file:
            return "model_config" in file.attrs
    try:
        return path.suffix == ".keras" if kind is not Kind.KERAS else not keras_hub_json.tower(_read_keras(path)[0])
    except (OSError, ValueError, LookupError, RecursionError, NotImplementedError, zipfile.BadZipFile):
        return True  # `load_model` says what is wrong with it


def _of_run(path: Path) -> Path:
    """Return the model in a folder that `finetune` wrote, and any other path as it is."""
    model = path / "model.keras"
    return model if os.path.isfile(model) else path


def _hdf5(path: Path, mode: str = "r"):
    import h5py

    try:
        return h5py.File(path, mode)
    except OSError as error:
        raise ValueError(f"{path} is damaged or incomplete: {error}") from None


@contextlib.contextmanager
def readable_weights(filepath: str | os.PathLike[str]) -> Iterator[tuple[str | os.PathLike[str], bool]]:
    """Yield a weight file in a form that Keras 3 reads, and whether its age must decide the activation."""
    # Keras 2 wrote two forms: `.weights.h5` with other group names, which are renamed in a copy, and a plain `.h5`,
    # which Keras 3 reads itself but which holds only arrays.
    path = Path(filepath)
    if is_of_keras_2(path):
        raise ValueError(keras_2_only(path))
    if path.suffix != ".h5" or not os.path.isfile(path) or kind_of(path) is not Kind.HDF5:
        yield filepath, False
        return
    with _hdf5(path) as file:
        keras_2_groups = _KERAS_2_GROUP in file
        plain = not path.name.endswith(".weights.h5")
        activation_unknown = plain and "mlp_activation" not in str(file.attrs.get("model_config", ""))
    if not keras_2_groups:
        yield filepath, activation_unknown
        return
    with tempfile.TemporaryDirectory() as folder:
        modern = Path(folder, path.name)
        shutil.copyfile(path, modern)
        _rename_groups(modern)
        yield modern, False


_KERAS_2_GROUP = "_layer_checkpoint_dependencies"


def _rename_groups(path: Path) -> None:
    """Rename the groups of a Keras 2 file as in Keras 3."""
    # Keras 2 met layers with weights twice and numbered them `dense`, `dense_2`, `dense_4`; Keras 3 counts by one.
    with _hdf5(path, "r+") as file:
        names: list[str] = []
        file.visit(names.append)
        for name in sorted(names, key=len, reverse=True):  # the innermost first, so that the other names still hold
            if name.endswith(_KERAS_2_GROUP):
                group = file[name]
                seen: dict[str, int] = {}
                for child in sorted(group, key=_kind_and_number):
                    kind, _ = _kind_and_number(child)
                    count = seen[kind] = seen.get(kind, -1) + 1
                    renumbered = f"{kind}_{count}" if count else kind
                    if renumbered != child:
                        group.move(child, renumbered)
                file.move(name, name[: -len(_KERAS_2_GROUP)] + "layers")


def _kind_and_number(name: str) -> tuple[str, int]:
    kind, _, number = name.rpartition("_")
    return (kind, int(number)) if kind and number.isdigit() else (name, 0)


def _modernise(config: Any, keras_2: bool = False) -> Any:
    """Return a model's configuration as this package and this backend read it."""
    # A Lambda of vit-keras 0.x becomes `ExtractToken`, and layer names have no slashes. An optimizer that was saved on
    # PyTorch has that backend's class, whose module ends a process with TensorFlow, and `keras.optimizers` names it.
    if isinstance(config, list):
        return [_modernise(item, keras_2) for item in config]
    if isinstance(config, str):
        if keras_2:
            config = re.sub(r"^(tf_)?keras\.", "keras.", config).replace("keras.src.engine.", "keras.src.models.")
        return config.replace("Transformer/", "Transformer_", 1) if config.startswith("Transformer/") else config
    if not isinstance(config, dict):
        return config
    config = {key: _modernise(value, keras_2) for key, value in config.items()}
    if str(config.get("module")).startswith(OPTIMIZERS_OF_TORCH) and keras.backend.backend() != "torch":
        config.update(module="keras.optimizers", registered_name=None)
    inner = config.get("config")
    if config.get("class_name") == "VisionTransformer" and "registered_name" not in config and "vit" in (inner or ()):
        config["class_name"] = "vit_keras>VisionTransformer"  # a .h5 that Keras wrote by itself
    if config.get("class_name") == "Lambda" and isinstance(inner, dict) and inner.get("name") == "ExtractToken":
        kept = {key: inner[key] for key in ("name", "trainable", "dtype") if key in inner}
        config.update(class_name="vit_keras>ExtractToken", config=kept)
        if "registered_name" in config:  # Keras 3's format
            config.update(module=None, class_name="ExtractToken", registered_name="vit_keras>ExtractToken")
        for node in config.get("inbound_nodes", ()):
            if isinstance(node, dict):
                node["kwargs"].pop("mask", None)
    layers = (layer for layer in config.get("layers", ()) if isinstance(layer, dict))
    if keras_2 or any(layer.get("name") == "ExtractToken" for layer in layers):
        # Keras 2 and some releases of Keras 3 wrote lists where the model had none; a model so read cannot be nested.
        for key in ("input_layers", "output_layers"):
            if key in config and len(config[key]) == 1 and isinstance(config[key][0], list):
                config[key] = config[key][0]
    return config


def _read_keras(path: Path) -> tuple[Any, bool]:
    """Return the configuration in an archive, and whether Keras 2 wrote it."""
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        unpacked = sum(member.file_size for member in members)
        if problem := too_many(len(members)) or too_much(unpacked, path.stat().st_size):
            raise ValueError(f"it {problem}")
        texts = [archive.getinfo(name) for name in ("config.json", "metadata.json")]
        if max(text.file_size for text in texts) > LIMIT_TEXT:
            raise ValueError(f"its configuration is longer than {LIMIT_TEXT:,} bytes")
        config, metadata = (json.loads(archive.read(text)) for text in texts)
    if not isinstance(metadata, Mapping):
        raise ValueError(f"its metadata.json is a {type(metadata).__name__}, not an object with keras_version")
    return config, str(metadata.get("keras_version", "")).startswith("2.")


def _write_keras(source: Path, target: Path, config: Any, keras_2: bool) -> None:
    """Write an archive with a new configuration and the names of Keras 3."""
    with (
        zipfile.ZipFile(source) as old,
        zipfile.ZipFile(target, "w") as new,
        tempfile.TemporaryDirectory() as folder,
    ):
        for item in old.infolist():
            path = old.extract(item, folder)
            if item.filename == "config.json":
                Path(path).write_text(json.dumps(config), encoding="utf-8")
            elif item.filename == "model.weights.h5" and keras_2:
                _rename_groups(Path(path))
            new.write(path, item.filename)


def _read_h5(path: Path) -> tuple[Any, bool]:
    """Return the configuration in an HDF5 file, `None` if there is none, and whether Keras 2 wrote it."""
    with _hdf5(path) as file:
        text = file.attrs.get("model_config")
        keras_2 = str(file.attrs.get("keras_version", "")).startswith("2.")
    if text is not None and len(text) > LIMIT_TEXT:
        raise ValueError(f"its configuration is longer than {LIMIT_TEXT:,} bytes")
    return None if text is None else json.loads(text), keras_2


def name_class(path: str | os.PathLike[str], model: keras.Model) -> None:
    """Write the whole name of a model's class into an HDF5 file, in which Keras leaves out the package."""
    with _hdf5(Path(path), "r+") as file:
        config = json.loads(file.attrs["model_config"])
        file.attrs["model_config"] = json.dumps({**config, "class_name": keras.saving.get_registered_name(type(model))})


def _write_h5(source: Path, target: Path, config: Any, _keras_2: bool) -> None:
    """Write an HDF5 file with a new configuration."""
    shutil.copyfile(source, target)
    with _hdf5(target, "r+") as new:
        new.attrs["model_config"] = json.dumps(config)


def _check_sizes(config: Any, key: str = "") -> None:
    """Raise an error for an integer in a configuration that is too large for any layer."""
    if isinstance(config, Mapping):
        for name, value in config.items():
            if name != "labels":  # which may be numbers
                _check_sizes(value, name)
    elif isinstance(config, list):
        for value in config:
            _check_sizes(value, key)
    elif isinstance(config, int) and config > LIMIT_INPUT and not any(word in key for word in _MAY_BE_LARGE):
        raise ValueError(f"its configuration has {key}={config:,}, and at most {LIMIT_INPUT:,} is possible")


def _check_layers(config: Any) -> None:
    """Raise an error for a configuration with too many layers, however they are nested."""
    count, waiting = 0, [(config, False)]
    while waiting:
        value, listed = waiting.pop()
        if isinstance(value, Mapping):
            count += listed or _is_nested_layer(value)
            waiting.extend((each, False) for key, each in value.items() if key != "layers")
            inside = value.get("layers")
            waiting.extend((each, True) for each in (inside if isinstance(inside, list) else (inside,)))
        elif isinstance(value, list):
            waiting.extend((each, False) for each in value)
    if count > LIMIT_LAYERS:
        raise ValueError(f"its configuration has {count:,} layers, and at most {LIMIT_LAYERS:,} are built")


def _is_nested_layer(entry: Mapping[str, Any]) -> bool:
    """Return whether an object in a configuration is a layer itself, such as the layer inside a wrapper."""
    return str(entry.get("module")).startswith(("keras.layers", "keras.src.layers")) and "config" in entry


_MAY_BE_LARGE = ("seed", "steps", "iterations", "value", "_id")


def _unknown_class(config: Any, custom_objects: Mapping[str, Any] | None) -> str | None:
    """Return the first class or function in a configuration that is neither part of Keras nor registered."""
    if isinstance(config, list):
        return next(filter(None, (_unknown_class(value, custom_objects) for value in config)), None)
    if not isinstance(config, Mapping):
        return None
    module, name = config.get("module") or "", config.get("class_name")
    if name == "function":
        name = config.get("config")
    if isinstance(name, str) and "config" in config and not name.startswith("__"):
        registered = config.get("registered_name") or name
        known = any(
            keras.saving.get_registered_object(text, custom_objects) is not None
            for text in (registered, name)
            if isinstance(text, str)
        )
        if not known and not _is_of_keras(module, name):
            return f"{module}.{name}" if module else name
    return next(filter(None, (_unknown_class(value, custom_objects) for value in config.values())), None)


def _is_of_keras(module: Any, name: str) -> bool:
    """Return whether Keras has a class or function of this name; older files do not name its module."""
    if module:
        return str(module).split(".")[0] in ("keras", "builtins")
    return any(hasattr(place, name) for place in (keras.layers, keras.models, keras.Model, keras))

"""Opening whole models, those of vit-keras 0.1 and 0.2 included.

Models that this package saves open with `keras.models.load_model` once `vit_keras` is imported. Those of
vit-keras 0.x hold a Lambda layer, which is Python bytecode that Keras rightly refuses to run, and 0.1.x put
slashes into layer names, which Keras 3 does not allow. `load_model` opens them without running anything.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras


def load_model(
    filepath: str | os.PathLike,
    custom_objects: dict[str, Any] | None = None,
    compile: bool = True,
    safe_mode: bool = True,
) -> keras.Model:
    """Open a saved model: `.keras` or `.h5`, of this package or of vit-keras 0.1 and 0.2.

    Arguments are those of `keras.models.load_model`. A model of vit-keras 0.x gives the outputs it gave there;
    saved again, it opens with Keras' own function too.

    Args:
        filepath: The file.
        custom_objects: Further classes by name; those of this package need not be named.
        compile: Whether to compile the model as it was when it was saved.
        safe_mode: Whether to refuse other Lambda layers than vit-keras's own, which is replaced, not run.

    Returns:
        The model.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is not a Keras model, or it is damaged.

    Example:
        >>> model = load_model("vit_keras_0_2.keras")  # doctest: +SKIP
    """
    path = Path(filepath)
    if not path.is_file():
        raise FileNotFoundError(f"There is no model file at {path}.")
    if not (_is_keras_archive(path) or _is_hdf5(path)):
        raise ValueError(f"{path} is not a Keras model: neither a .keras archive nor an HDF5 file, whatever its name.")
    options = {"custom_objects": custom_objects, "compile": compile, "safe_mode": safe_mode}
    rewrite = _rewrite_keras if _is_keras_archive(path) else _rewrite_h5
    with tempfile.TemporaryDirectory() as folder:
        modern = Path(folder, path.name)
        return keras.models.load_model(modern if rewrite(path, modern) else path, **options)


def is_whole_model(path: str | os.PathLike) -> bool:
    """Whether a file holds a Keras model, and not weights alone."""
    path = Path(path)
    if not path.is_file():
        return False
    if _is_keras_archive(path):
        return True
    if not _is_hdf5(path):
        return False
    with _hdf5(path) as file:
        return "model_config" in file.attrs


def _is_keras_archive(path: Path) -> bool:
    if not zipfile.is_zipfile(path):
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            return {"config.json", "metadata.json"} <= set(archive.namelist())
    except (OSError, ValueError, NotImplementedError, zipfile.BadZipFile):  # a damaged one
        return False


def _is_hdf5(path: Path) -> bool:
    with open(path, "rb") as file:
        return file.read(8) == b"\x89HDF\r\n\x1a\n"


def _hdf5(path: Path, mode: str = "r"):
    import h5py

    try:
        return h5py.File(path, mode)
    except OSError as error:
        raise ValueError(f"{path} is damaged or incomplete: {error}") from None


@contextlib.contextmanager
def readable_weights(filepath: str | os.PathLike) -> Iterator[tuple[str | os.PathLike, bool]]:
    """A file of weights in a form that Keras 3 reads, and whether nothing but its age tells the activation.

    Keras 2 wrote two forms: `.weights.h5` with other group names, which are renamed in a copy, and a plain `.h5`,
    which Keras 3 reads itself but which holds no more than arrays.
    """
    path = Path(filepath)
    if path.suffix != ".h5" or not path.is_file() or not _is_hdf5(path):
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
    """Give a file of Keras 2 the names of Keras 3.

    Keras 2 met layers with weights twice and numbered them `dense`, `dense_2`, `dense_4`; Keras 3 counts by one.
    """
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


def _modernise(config: Any) -> Any:
    """A model's configuration with vit-keras 0.x's Lambda as `ExtractToken` and no slash in a layer's name."""
    if isinstance(config, list):
        return [_modernise(item) for item in config]
    if isinstance(config, str):
        return config.replace("Transformer/", "Transformer_", 1) if config.startswith("Transformer/") else config
    if not isinstance(config, dict):
        return config
    config = {key: _modernise(value) for key, value in config.items()}
    inner = config.get("config")
    if config.get("class_name") == "Lambda" and isinstance(inner, dict) and inner.get("name") == "ExtractToken":
        kept = {key: inner[key] for key in ("name", "trainable", "dtype") if key in inner}
        config.update(class_name="Custom>ExtractToken", config=kept)
        if "registered_name" in config:  # Keras 3's format
            config.update(module=None, class_name="ExtractToken", registered_name="vit_keras>ExtractToken")
        for node in config.get("inbound_nodes", ()):
            if isinstance(node, dict):
                node["kwargs"].pop("mask", None)
    if any(layer.get("name") == "ExtractToken" for layer in config.get("layers", ()) if isinstance(layer, dict)):
        config = _unlist_ends(config)
    return config


def _unlist_ends(config: dict) -> dict:
    """A functional model whose one input and output are themselves and not lists of one.

    Keras 2 and some releases of Keras 3 wrote lists where the model had none, and a model so read cannot be nested.
    """
    ends = {
        key: config[key][0]
        for key in ("input_layers", "output_layers")
        if key in config and len(config[key]) == 1 and isinstance(config[key][0], list)
    }
    return {**config, **ends}


def _modernise_keras_2(config: Any) -> Any:
    """What Keras 2 wrote differently in any model."""
    if isinstance(config, list):
        return [_modernise_keras_2(item) for item in config]
    if isinstance(config, str):
        return config.replace("keras.src.engine.", "keras.src.models.")
    if not isinstance(config, dict):
        return config
    return _unlist_ends({key: _modernise_keras_2(value) for key, value in config.items()})


def _rewrite_keras(source: Path, target: Path) -> bool:
    """Write the archive in a form that Keras 3 opens; say whether there was anything to change."""
    with zipfile.ZipFile(source) as old:
        config = json.loads(old.read("config.json"))
        modern = _modernise(config)
        keras_2 = json.loads(old.read("metadata.json")).get("keras_version", "").startswith("2.")
        if keras_2:
            modern = _modernise_keras_2(modern)
        if modern == config:
            return False
        with zipfile.ZipFile(target, "w") as new, tempfile.TemporaryDirectory() as folder:
            for item in old.infolist():
                path = old.extract(item, folder)
                if item.filename == "config.json":
                    Path(path).write_text(json.dumps(modern))
                elif item.filename == "model.weights.h5" and keras_2:
                    _rename_groups(Path(path))
                new.write(path, item.filename)
    return True


def _rewrite_h5(source: Path, target: Path) -> bool:
    with _hdf5(source) as old:
        text = old.attrs.get("model_config")
        keras_version = old.attrs.get("keras_version", "")
    if text is None:
        return False
    config = json.loads(text)
    modern = _modernise(config)
    if str(keras_version).startswith("2."):
        modern = _modernise_keras_2(modern)
    if modern == config:
        return False
    shutil.copyfile(source, target)
    with _hdf5(target, "r+") as new:
        new.attrs["model_config"] = json.dumps(modern)
    return True

"""Paths of exported files, and which existing files they may replace."""

from __future__ import annotations

from pathlib import Path

from .formats import FORMATS

__all__ = ["check_place", "names"]


def check_place(path: Path, name: str) -> None:
    """Raise an error if a file of a format cannot be put at a path; nothing has been computed yet."""
    if path.name in ("", ".."):
        raise ValueError(f"{path} is a folder: name the file or the new folder in it.")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"There is no folder {path.parent} to write {path.name} to.")
    if FORMATS[name].suffix and path.is_dir():
        raise ValueError(f"{path} is a folder: name the file in it.")
    if not FORMATS[name].suffix and path.exists():
        earlier = path.is_dir() and ((path / "saved_model.pb").is_file() or not any(path.iterdir()))
        if not earlier:
            raise ValueError(f"{path} exists and is not a SavedModel: name another folder, which will be made.")


def names(path: Path, name: str) -> list[str]:
    """Return the names that an export to a path may have, each after those that it describes.

    Example:
        >>> names(Path("vit.xml"), "openvino")
        ['vit.bin', 'vit.xml', 'vit.xml.report.json']
    """
    kind = FORMATS[name]
    own = kind.weights.replace(kind.suffix, path.suffix) if kind.weights else ""  # A.ONNX has A.ONNX.data
    return [*([path.with_suffix(own).name] if own else []), path.name, f"{path.name}.report.json"]

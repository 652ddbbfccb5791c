"""Makes the folder of photographs that the suite `features` reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from PIL import Image

from . import photo


def save(cell: dict[str, Any], path: str) -> None:
    """Write as many JPEG files as the cell has images."""
    Path(path).mkdir(exist_ok=True)
    for number in range(cell["images"]):
        Image.fromarray(photo(number)).save(Path(path, f"{number:04d}.jpg"), quality=90)

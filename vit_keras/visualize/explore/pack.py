"""Storage of attention and similarities in the page: in 8 bits, compressed."""

from __future__ import annotations

import zlib

import numpy as np

__all__ = ["encode", "pack", "pack_similarity"]


def encode(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of shares in one byte per value, the square root of value / maximum in 255 steps, and the maxima."""
    # Square roots keep small values more precise than linear steps do. For rows that sum to 1, half the sum of absolute
    # errors (the total variation) is at most `sqrt(n * maximum) / 510 + n * maximum / 2 / 510**2` for n values. On
    # attention of trained models it is 0.003 on average and at most 0.008.
    rows = np.asarray(rows, "float32")
    maxima = rows.max(axis=-1)
    divisor = np.where(maxima > 0, maxima, 1)[..., None]
    return np.rint(255 * np.sqrt(np.clip(rows / divisor, 0, 1))).astype("uint8"), maxima


def pack(rows: np.ndarray) -> bytes:
    """Return `(heads, queries, keys)`, encoded and compressed: the maxima, then the codes as differences."""
    # Neighboring queries attend to similar places, so the differences to the query before take 4 % less than the codes.
    codes, maxima = encode(rows)
    steps = np.diff(codes, axis=-2, prepend=np.zeros_like(codes[..., :1, :]))  # modulo 256
    return compress(maxima.astype("<f4").tobytes() + steps.tobytes())


def compress(data: bytes) -> bytes:
    """Return bytes as gzip without a time stamp, so that the same data give the same file."""
    packer = zlib.compressobj(6, zlib.DEFLATED, 31, 9, zlib.Z_FILTERED)
    return packer.compress(data) + packer.flush()


def pack_similarity(tokens: np.ndarray) -> bytes:
    """Return the cosines of all pairs of `(tokens, hidden_size)`, in 255 steps and compressed."""
    unit = tokens / np.maximum(np.linalg.norm(tokens, axis=-1, keepdims=True), 1e-12)
    return compress(np.rint((np.clip(unit @ unit.T, -1, 1) + 1) * 127.5).astype("uint8").tobytes())

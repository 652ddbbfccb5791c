"""Encoded images inside a TensorFlow graph, read as `vit_keras.preprocess.images.read` reads them: upright 8-bit RGB.

The orientation in a JPEG's EXIF data is applied, transparency of a PNG is put on white, 16 bits become 8 by the same
rules, and gray becomes RGB. Differences that remain: a JPEG can be one or two gray levels off (another version of the
same decoder), CMYK and BMP with a palette are not converted, and the EXIF data of a PNG or WebP is not read.
"""

from __future__ import annotations

from typing import Any

__all__ = ["decode_image"]

MAX_PIXELS = 50_000_000
"""Pixels of the largest image that is decoded: a PNG takes about 60 bytes for each."""
MAX_DECODED = 100 * MAX_PIXELS
"""Pixels of all scans of a JPEG together: a few bytes make a scan, which costs a pass over the image."""
MAX_SIDE = 1 << 17
"""Pixels of its longest side: the graph resizes across first, which makes a narrow image many times larger."""
_JPEG, _PNG, _GIF, _BMP = b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"BM"
_EXIF_WITHIN = 1 << 16
"""Bytes of a file in which its EXIF data begins."""
_ORIENTATION = 0x0112


def decode_image(data: Any) -> Any:
    """Return the uint8 `(height, width, 3)` of a file's bytes; too large an image is an `InvalidArgumentError`."""
    import tensorflow as tf

    data = _bounded(data)
    pixels = tf.case(
        [(_starts_with(data, _JPEG), lambda: _jpeg(data)), (_starts_with(data, _PNG), lambda: _png(data))],
        default=lambda: _other(data),
        exclusive=True,
    )
    return tf.ensure_shape(pixels, (None, None, 3))


def _starts_with(data, prefix):
    import tensorflow as tf

    return tf.equal(tf.strings.substr(data, 0, len(prefix)), prefix)


def _required(condition, value, *message):
    """Return a value; where a condition fails, the graph raises an error instead."""
    import tensorflow as tf

    with tf.control_dependencies([tf.debugging.Assert(condition, message)]):
        return tf.nest.map_structure(tf.identity, value)


def _bounded(data):
    """Return the bytes of a file, after a check of its kind and of the size that its head tells."""
    import tensorflow as tf

    head = tf.cast(tf.io.decode_raw(tf.strings.substr(data, 0, 26), tf.uint8), tf.int64)
    missing: Any = 26 - tf.shape(head)[0]
    head = tf.pad(head, [[0, missing]])

    def size(at, count, little):
        places = range(count) if little else range(count - 1, -1, -1)
        return [sum(head[start + n] * 256**power for n, power in enumerate(places)) for start in (at, at + count)]

    def of_jpeg():
        height, width, _ = tf.unstack(tf.cast(tf.io.extract_jpeg_shape(data), tf.int64))
        raw = tf.io.decode_raw(data, tf.uint8)
        scans = tf.math.count_nonzero(tf.equal(raw[:-1], 0xFF) & tf.equal(raw[1:], 0xDA))
        message = f"The image has too many scans: at most {MAX_DECODED:,} pixels are decoded in all."
        return _required(width * height * scans <= MAX_DECODED, [width, height], message, scans)

    width, height = tf.case(
        [
            (_starts_with(data, _JPEG), of_jpeg),
            (_starts_with(data, _PNG), lambda: size(16, 4, False)),
            # A negative height: the top row is first.
            (_starts_with(data, _BMP), lambda: [tf.minimum(n, (1 << 32) - n) for n in size(18, 4, True)]),
        ],
        default=lambda: [tf.constant(1, tf.int64)] * 2,  # no image, as the decoder will say
        exclusive=True,
    )
    allowed = (width <= MAX_SIDE) & (height <= MAX_SIDE) & (width * height <= MAX_PIXELS)
    message = f"The image has too many pixels: at most {MAX_PIXELS:,} are decoded, and {MAX_SIDE:,} on a side."
    data = _required(~_starts_with(data, _GIF), data, "GIF images are not decoded. Send PNG or JPEG.")
    return _required(allowed, data, message, width, height)


def _jpeg(data):
    import tensorflow as tf

    pixels = tf.io.decode_jpeg(data, channels=3, dct_method="INTEGER_ACCURATE")
    orientation = _orientation(data)

    def turned(value):
        upright = tf.transpose(pixels, (1, 0, 2)) if value >= 5 else pixels
        down, across = value in (3, 4, 7, 8), value in (2, 3, 6, 7)
        return tf.reverse(upright, [axis for axis, flip in enumerate((down, across)) if flip])

    branches = [lambda value=value: turned(value) for value in range(1, 9)]
    return tf.switch_case(orientation - 1, branches)


def _orientation(data):
    """Return the orientation, 1 to 8, in the EXIF data of a JPEG; 1 without any."""
    import tensorflow as tf

    raw = tf.cast(tf.io.decode_raw(tf.strings.substr(data, 0, _EXIF_WITHIN), tf.uint8), tf.int32)
    last = tf.size(raw) - 1
    mark = tf.constant([0xFF, 0xE1, 0, 0, *b"Exif\0\0"])
    known = [n for n in range(10) if n not in (2, 3)]  # two bytes are the length of the segment
    starts = tf.range(tf.maximum(last - 8, 0))
    found = tf.reduce_all([tf.gather(raw, starts + n) == mark[n] for n in known], axis=0)
    start = tf.cast(tf.argmax(found), tf.int32) + 10  # of the TIFF header

    def number(at: Any, count: int) -> Any:
        little = tf.equal(tf.gather(raw, tf.minimum(start, last)), ord("I"))
        powers = tf.where(little, tf.range(count), tf.range(count - 1, -1, -1))
        digits = [tf.gather(raw, tf.clip_by_value(start + at + n, 0, last)) for n in range(count)]
        return sum(tf.bitwise.left_shift(digit, 8 * powers[n]) for n, digit in enumerate(digits))

    folder = tf.clip_by_value(number(4, 4), 0, _EXIF_WITHIN)
    entries = folder + 2 + 12 * tf.range(tf.minimum(number(folder, 2), 512))
    wanted = tf.equal(number(entries, 2), _ORIENTATION)
    value = tf.reduce_max(tf.where(wanted, number(entries + 8, 2), 0))
    valid = tf.reduce_any(found) & (value >= 1) & (value <= 8)
    return tf.where(valid, value, 1)


def _png(data):
    import tensorflow as tf

    pixels: Any = tf.cast(tf.io.decode_png(data, channels=4, dtype=tf.uint16), tf.float32)  # 8 bits are times 257 there
    depth, kind = (tf.io.decode_raw(tf.strings.substr(data, at, 1), tf.uint8)[0] for at in (24, 25))
    gray16 = tf.equal(depth, 16) & tf.equal(kind, 0)
    pixels = tf.where(gray16, tf.round(pixels / 257), tf.floor(pixels / 256))  # Pillow drops the lower byte of colors
    # TensorFlow fills the missing opacity of fewer than 8 bits with their largest value, and not with that of 8.
    filler = tf.cast(tf.bitwise.left_shift(1, tf.cast(depth, tf.int32)) - 1, tf.float32)
    opaque = (depth < 8) & tf.reduce_all(pixels[..., 3] == filler)
    opacity = tf.where(opaque, 1.0, pixels[..., 3:] / 255)
    return tf.cast(tf.floor(pixels[..., :3] * opacity + 255 * (1 - opacity) + 0.5), tf.uint8)


def _other(data):
    import tensorflow as tf

    pixels = tf.io.decode_image(data, expand_animations=False)
    size = tf.shape(pixels, tf.int64)
    message = f"The image has too many pixels: at most {MAX_PIXELS:,} are taken."  # a WebP has at most 268 million
    pixels = _required(size[0] * size[1] <= MAX_PIXELS, pixels, message, size)
    gray = tf.equal(tf.shape(pixels)[-1], 1)
    return tf.cond(gray, lambda: tf.image.grayscale_to_rgb(pixels[..., :1]), lambda: pixels[..., :3])

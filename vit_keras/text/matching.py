"""Compare images with sentences: features, probabilities, retrieval, and zero-shot classifiers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from .._internal.validate import as_array, instance, positive_integer
from ..anatomy.inputs import batch_preprocessing_of
from ..anatomy.outputs import output_kind
from ..anatomy.parts import has_vit
from ..model import VisionTransformer
from .config import TextConfig
from .model import ImageText
from .tokenizer import strings

__all__ = ["encode_images", "encode_texts", "similarity", "top_k", "zero_shot", "zero_shot_classifier"]


def encode_images(model: ImageText, images: Any, batch_size: int = 32) -> np.ndarray:
    """Return the features of images, each of length 1.

    Args:
        model: Both towers.
        images: One image or several: paths, URLs, PIL images or arrays (see `vit_keras.utils.read`).
        batch_size: Images in a batch.

    Returns:
        float32 `(images, width)`

    Raises:
        FileNotFoundError: An image does not exist.
        TypeError: `model` is not an `ImageText`.
        ValueError: An image cannot be read, or the image tower has no Vision Transformer of this package.

    Example:
        >>> encode_images(model, ["cat.jpg", "dog.jpg"]).shape  # doctest: +SKIP
        (2, 512)
    """
    positive_integer(batch_size, "batch_size")
    tower = _towers(model).image
    own = getattr(tower, "preprocess", None)  # of somebody's tower without a Vision Transformer of this package
    prepare = own if own and not has_vit(tower) else batch_preprocessing_of(tower)
    inputs = prepare(images)
    return _unit(model.image.predict(inputs, batch_size=batch_size, verbose=0))


def encode_texts(
    model: ImageText, texts: str | Sequence[str], templates: str | Sequence[str] = "{}", batch_size: int = 256
) -> np.ndarray:
    """Return the features of texts, each of length 1.

    Args:
        model: Both towers, with a tokenizer.
        texts: One text or several.
        templates: Sentences with `{}` for the text, such as `"a photo of a {}."`. The features of several are
            averaged, as in CLIP's paper (section 3.1.4).
        batch_size: Sentences in a batch.

    Returns:
        float32 `(texts, width)`

    Raises:
        FileNotFoundError: There is no tokenizer next to the weights.
        ImportError: The tokenizer's library is not installed.
        TypeError: `model` is not an `ImageText`, or a text is not a string.
        ValueError: There is no text, a template has no `{}`, or the tokenizer is missing or does not fit the model.

    Example:
        >>> encode_texts(model, ["a cat", "a dog"], templates=["a photo of {}.", "{}"]).shape  # doctest: +SKIP
        (2, 512)
    """
    _towers(model)
    positive_integer(batch_size, "batch_size")
    texts, templates = strings(texts, "texts"), strings(templates, "templates")
    if not texts or not templates or any("{}" not in template for template in templates):
        raise ValueError(f"At least one text and one template with {{}} are needed. Received: {texts}, {templates}")
    if model.tokenizer is None:
        raise ValueError("The model has no tokenizer: set model.tokenizer = vit_keras.text.Tokenizer(FOLDER).")
    sentences = [template.replace("{}", text) for text in texts for template in templates]
    ids = np.asarray(model.tokenizer(sentences))
    config = getattr(model.text, "config", None)
    if isinstance(config, TextConfig):  # others' towers have none
        _check_tokens(config, ids)
        ids = ids if model.text.input_shape[1] is not None else _trimmed(config, ids)
    features = _unit(model.text.predict(ids, batch_size=batch_size, verbose=0))
    return _unit(features.reshape(len(texts), len(templates), -1).mean(axis=1))


def _towers(model: Any) -> ImageText:
    return instance(model, ImageText, "model, as open_image_text returns it,")


def _check_tokens(config: TextConfig, ids: np.ndarray) -> None:
    """Raise an error for tokens outside of the vocabulary, which some backends accept silently."""
    if ids.max() >= config.vocab_size:
        raise ValueError(
            f"The tokenizer is not the model's: it gives the token {ids.max()}, and the vocabulary of the text tower "
            f"has {config.vocab_size}."
        )
    if config.pooling == "eos" and not (ids == config.eos_id).any(axis=1).all():
        raise ValueError(
            f"The tokenizer is not the model's: it ends no text with the token {config.eos_id}, where the text tower "
            "reads its features."
        )


def _trimmed(config: TextConfig, ids: np.ndarray) -> np.ndarray:
    """Return tokens without the columns after the end of the longest text, which a causal tower ignores."""
    ends = ids.argmax(axis=1) if config.pooling == "argmax" else (ids == config.eos_id).argmax(axis=1)
    return ids[:, : -(-(int(ends.max()) + 1) // 8) * 8]  # eights: few lengths to compile for


def _unit(features: np.ndarray) -> np.ndarray:
    features = as_array(features, "float32")
    return features / np.maximum(np.linalg.norm(features, axis=-1, keepdims=True), 1e-12)


def similarity(model: ImageText, images: Any, texts: str | Sequence[str], **options: Any) -> np.ndarray:
    """Return the similarity of images and texts: the cosines of their features.

    Args:
        model: Both towers.
        images: One image or several.
        texts: One text or several.
        **options: `templates`; see `encode_texts`.

    Returns:
        float32 `(images, texts)`, from -1 to 1.

    Raises:
        ValueError: See `encode_images` and `encode_texts`.

    Example:
        >>> similarity(model, "cat.jpg", ["a cat", "a dog"]).shape  # doctest: +SKIP
        (1, 2)
    """
    return encode_images(model, images) @ encode_texts(model, texts, **options).T


def zero_shot(model: ImageText, images: Any, texts: str | Sequence[str], **options: Any) -> np.ndarray:
    """Return the probability of each text for each image.

    Args:
        model: Both towers: `open_image_text(...)`.
        images: One image or several: paths, URLs, PIL images or arrays.
        texts: Texts, such as `["a photo of a cat", "a photo of a dog"]`.
        **options: `templates`; see `encode_texts`.

    Returns:
        float32 `(images, texts)`. With the loss `"softmax"` (CLIP), each row sums to 1: one of the texts is
        right. With `"sigmoid"` (SigLIP), the probability of each text is independent of the others.

    Raises:
        ValueError: See `encode_images` and `encode_texts`.

    Example:
        >>> zero_shot(model, "cat.jpg", ["a cat", "a dog"])  # doctest: +SKIP
    """
    image, text = encode_images(model, images), encode_texts(model, texts, **options)
    logits = model.logits(image, text)
    activate = keras.activations.softmax if model.loss_kind == "softmax" else keras.activations.sigmoid
    return keras.ops.convert_to_numpy(activate(logits))


def top_k(scores: np.ndarray, k: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Return the best columns of each row: the texts for an image or, for transposed scores, the images for a text.

    Args:
        scores: `(rows, columns)`, such as `similarity(model, images, texts)`.
        k: Number of columns; limited to the number of columns of `scores`.

    Returns:
        Two arrays `(rows, k)`: the columns, and their scores. Among equal scores, the first column comes first.

    Raises:
        TypeError: The scores are not numbers.
        ValueError: `k` is not a positive integer, or the scores do not have two axes.

    Example:
        >>> top_k(np.array([[0.1, 0.9, 0.5]]), 2)
        (array([[1, 2]]), array([[0.9, 0.5]]))
    """
    scores = as_array(scores)
    if scores.dtype.kind not in "fiu" or scores.ndim < 1:
        raise TypeError(f"scores must be an array of numbers. Received: {scores!r:.100}")
    if scores.ndim != 2:
        raise ValueError(f"scores must be (rows, columns). Received: an array of shape {scores.shape}")
    falling = -scores if scores.dtype.kind == "f" else ~scores  # which cannot overflow
    best = np.argsort(falling, axis=-1, kind="stable")[:, : positive_integer(k, "k")]
    return best, np.take_along_axis(scores, best, axis=-1)


def zero_shot_classifier(
    model: ImageText,
    classes: Sequence[str],
    templates: str | Sequence[str] = "{}",
    *,
    activation: str | None = None,
    name: str = "zero_shot",
) -> VisionTransformer:
    """Return an image classifier whose head consists of the features of sentences.

    The classifier no longer needs the text tower. It behaves like any other model with class names: it predicts, and
    can be exported, saved, fine-tuned and explained. It shares the image tower with the given model.

    Args:
        model: Both towers, with a tokenizer.
        classes: Names of the classes, which replace `{}` in the templates; or whole sentences.
        templates: See `encode_texts`.
        activation: Activation of the output. `None` chooses `"softmax"` or `"sigmoid"` by the loss of the model;
            `"linear"` returns logits. With the loss `"sigmoid"`, the task of the logits is `"multi"`, because their
            probabilities are sigmoids. To measure them on a folder of classes, set `task = "single"`.
        name: Name of the new model.

    Returns:
        A model from images to `(batch, classes)`, with the `preprocessing` of the image tower and the classes as
        `labels`.

    Raises:
        ValueError: Two classes are the same; see also `encode_texts`.

    Example:
        >>> classifier = zero_shot_classifier(model, ["cat", "dog"], "a photo of a {}.")  # doctest: +SKIP
    """
    _towers(model)
    classes = strings(classes, "classes")
    if len(set(classes)) < len(classes):
        raise ValueError(f"Each class needs a different name. Received: {classes}")
    features = encode_texts(model, classes, templates)
    scale = float(np.exp(keras.ops.convert_to_numpy(model.logit_scale)))
    bias = 0.0 if model.logit_bias is None else float(keras.ops.convert_to_numpy(model.logit_bias))
    inputs = keras.Input(model.image.input_shape[1:])
    unit = keras.layers.UnitNormalization(name="unit", dtype="float32")(model.image(inputs))
    # The tower keeps the classes of each of its heads by the layer's name, which Keras makes another one each time.
    head = keras.layers.Dense(len(classes), activation=activation or model.loss_kind, dtype="float32")
    classifier = VisionTransformer(inputs, head(unit), name=name)
    head.set_weights([scale * features.T, np.full(len(classes), bias, "float32")])
    classifier.labels = tuple(classes)
    if model.loss_kind == "sigmoid" and output_kind(classifier) == "logits":
        classifier.task = "multi"
    return classifier

"""Teach a text tower the words for what a frozen image tower sees (LiT, arXiv 2111.07991), on handwritten digits.

python examples/lit.py
"""

import keras
import numpy as np
from finetune import digits

from vit_keras import vit
from vit_keras.text import ImageText, TextConfig, build_text, zero_shot_classifier

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
SENTENCES = ("a handwritten {}", "the digit {}", "somebody wrote a {} here", "{}")
WORDS = sorted({word for sentence in (*SENTENCES, *NAMES) for word in sentence.split()} | {"<end>"})


def tokenize(texts, length=8):
    """Return the tokens of texts, int32 (texts, length): a number for each word. 0 is for padding, 1 ends a text."""
    numbers = {"<end>": 1} | {word: n for n, word in enumerate((w for w in WORDS if w != "<end>"), start=2)}
    ids = np.zeros((len(texts), length), "int32")
    for row, text in zip(ids, texts):
        words = [*text.split(), "<end>"]
        row[: len(words)] = [numbers[word] for word in words]
    return ids


def main(epochs=8, samples=None):
    """Return a classifier that is made of sentences, and its accuracy on the test images."""
    train_images, test_images, train_labels, test_labels = digits(size=32)

    image = vit.vit_cifar10(include_top=False)
    config = TextConfig(
        vocab_size=len(WORDS) + 1,
        context_length=8,
        num_layers=2,
        hidden_size=64,
        num_heads=2,
        mlp_dim=128,
        pooling="eos",
        eos_id=1,
        output_size=image.output_shape[-1],
    )
    model = ImageText(image, build_text(config), loss="sigmoid", tokenizer=tokenize)
    model.image.trainable = False

    sentences = np.random.default_rng(0).choice(SENTENCES, len(train_labels))
    texts = tokenize([sentence.format(NAMES[label]) for sentence, label in zip(sentences, train_labels)])
    data = {"image": train_images[:samples], "text": texts[:samples]}
    model.compile(keras.optimizers.Adam(1e-3))
    model.fit(data, batch_size=32, epochs=epochs, verbose=2)

    classifier = zero_shot_classifier(model, NAMES, SENTENCES[:3])
    return classifier, float((classifier.predict(test_images, verbose=0).argmax(axis=1) == test_labels).mean())


if __name__ == "__main__":
    print(f"accuracy on digits that were held out: {main()[1]:.1%}")

"""What `test_openvino.py` runs in a process with Keras on OpenVINO; it prints what it found as JSON."""

import concurrent.futures
import json
import sys

import keras
import make_google_npz
import numpy as np
from PIL import Image
from support import DATA

import vit_keras
from vit_keras import training, visualize, vit
from vit_keras.backend import openvino
from vit_keras.training.evaluation import images_of_mistakes


def message(function, *args, refused_by=NotImplementedError, **kwargs):
    """Return the error of a call that must be refused."""
    try:
        function(*args, **kwargs)
    except refused_by as error:
        return str(error)
    return None


def far(found, wanted):
    """Return the largest difference, as a share of the largest value."""
    return float(np.abs(keras.ops.convert_to_numpy(found) - wanted).max() / np.abs(wanted).max())


def main(folder):
    golden = np.load(DATA / "ViT-mu_16.npz")
    make_google_npz.save(f"{folder}/weights.npz", make_google_npz.make("ViT-mu_16", image_size=64, classes=10))
    model = vit_keras.from_checkpoint(f"{folder}/weights.npz")
    images, logits = vit.preprocess_inputs(golden["image"]), golden["logits"]
    whole = keras.Model(model.input, model.output)
    found = {"call": far(model(images), logits), "predict": far(model.predict(images, verbose=0), logits)}
    found["plain predict"] = far(whole.predict(images, verbose=0), logits)
    patches = golden["encoded"][:, 1:].reshape(len(images), 4, 4, -1)
    found["feature_maps"] = far(vit_keras.feature_maps(model, -1)(images), patches)
    recording = visualize.record(model, golden["image"])
    found["record"] = far(recording.features, golden["encoded"])
    found["scores"] = float(np.abs(recording.attention.sum(axis=-1) - 1).max())
    found["rollout"] = visualize.attention_map(model, golden["image"][0], return_map=True).tolist()
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        found["threads"] = max(pool.map(lambda _: far(model(images), logits), range(8)))
        again = keras.Model(model.input, model.output)  # not compiled yet
        found["predict in threads"] = max(pool.map(lambda _: far(again.predict(images, verbose=0), logits), range(8)))

    for name, each in {"": vit_keras.resize(model, 64), "plain ": keras.Model(model.input, model.output)}.items():
        each.predict(golden["image"], verbose=0)
        found[f"{name}predict after uint8"] = far(each.predict(images, verbose=0), logits)
    message(whole.predict, images[:, :32], verbose=0, refused_by=ValueError)
    found["plain predict after an error"] = far(whole.predict(images, verbose=0), logits)
    found["predict_on_batch of a tensor"] = far(model.predict_on_batch(keras.ops.convert_to_tensor(images)), logits)

    whole.compile(loss="sparse_categorical_crossentropy")
    model.compile(loss="sparse_categorical_crossentropy")
    labels = np.zeros(len(images))
    loss = whole.evaluate(images, labels, verbose=0)
    found["evaluate"] = far(np.array(model.evaluate(images, labels, verbose=0)), loss)

    mixed = vit_keras.resize(model, 64, dtype="mixed_bfloat16")
    found["call in mixed_bfloat16"] = far(mixed(images), logits)
    found["predict in mixed_bfloat16"] = far(vit_keras.feature_maps(mixed, -1).predict(images, verbose=0), patches)

    bias = model.get_layer("head").bias
    bias.assign(bias + 1)
    for name, outputs in {"call": model(images), "predict": model.predict(images, verbose=0)}.items():
        found[f"{name} after a change"] = far(outputs, logits + 1)
    found["plain predict after a change"] = far(whole.predict(images, verbose=0), logits + 1)
    openvino.precision = "bf16"
    found["bfloat16"] = far(model.predict(images, verbose=0), logits + 1)

    Image.fromarray(golden["image"][0]).save(f"{folder}/0.png")
    wrong = training.Evaluation(("a", "b"), ("0.png",), np.array([1]), np.array([[0.9, 0.1]]))
    found["maps of mistakes"] = [each is not None for each in images_of_mistakes(model, wrong, folder)[0]]

    pretraining = training.MaskedAutoencoder(model)
    found["refused"] = {
        "fit": message(model.fit, images, np.zeros(len(images))),
        "fit a masked autoencoder": message(pretraining.fit, images),
        "finetune": message(training.finetune, "no such folder"),
        "relevance": message(visualize.attention_map, model, golden["image"][0], method="relevance"),
        "distribute": message(vit_keras.distribute, "data"),
    }
    found["h5"] = message(model.save, f"{folder}/model.h5", refused_by=ValueError)
    print(json.dumps(found))


main(sys.argv[1])

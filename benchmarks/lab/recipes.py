"""Measure what changes of a recipe gain: a ViT fine-tuned on few images, tested on images of the same folder.

python -m benchmarks.lab.recipes FOLDER "mixup=0.2" "ema=0.9" "tta=flip" --weights Ti_16.npz --output runs

FOLDER holds class/image. `--tested` images, evenly of all classes and the same for all seeds, are the test; each seed
draws `--pictures` others of each class to learn from. A change is one text of one or several NAME=VALUE, divided by
spaces. Its names are fields of `training.Recipe` and `training.Augmentation`, `recipe` (which one is changed), and

- `last`: the average of the weights after this many last epochs is tested,
- `ema`: the moving average of the weights is tested, which the training of the unchanged recipe keeps too,
- `tta`, `size`: views, and pixels of a side, at test time only,
- `grow`: the last epoch is trained at this many pixels of a side, and tested there,
- `folds`: as many models learn from all folds of the images but one; `join` says whether their `"weights"` or their
  `"predictions"` are averaged, or the accuracies of the single models (`"nothing"`).

Every model and result is kept in a folder inside `--output`, one for each FOLDER and each set of options but
`--weights`; so a call that was killed continues. Printed is, for each change, the gain over the unchanged recipe in
points of accuracy, with its standard error over the seeds, and the time of training.
"""

import argparse
import json
import time
from pathlib import Path

import keras
import numpy as np

import vit_keras
from vit_keras import training
from vit_keras._internal.atomic import complete
from vit_keras.cli.options import setting
from vit_keras.opening import from_checkpoint, open_model, resize

EMA = (0.9, 0.98)
AT_TEST = ("last", "ema", "tta", "size", "join")


class Averages(keras.callbacks.Callback):
    """Keeps the weights after each epoch, and moving averages of them, as Keras computes them, by a name."""

    def __init__(self):
        super().__init__()
        self.kept = {}

    def on_train_batch_end(self, batch, logs=None):
        now = self.model.get_weights()
        for momentum in EMA:
            before = self.kept.get(f"ema{momentum}", now)
            self.kept[f"ema{momentum}"] = [momentum * old + (1 - momentum) * new for old, new in zip(before, now)]

    def on_epoch_end(self, epoch, logs=None):
        self.kept[f"epoch{epoch}"] = self.model.get_weights()


class Measurement:
    """The images, the options, and what has been measured."""

    def __init__(self, options):
        self.options, self.folder = options, options.folder
        told = (options.folder.resolve().name, options.pictures, options.tested, options.epochs, options.size)
        self.output = options.output / "-".join(map(str, told))
        groups = sorted(path for path in self.folder.iterdir() if path.is_dir())
        self.classes = [group.name for group in groups]
        self.files = [sorted(str(path.relative_to(self.folder)) for path in group.iterdir()) for group in groups]
        self.tested = options.tested // len(groups)

    def images(self, seed, held_out):
        """Return a table of the images to test, or to learn from with a seed."""
        first = [np.random.default_rng(0).permutation(group) for group in self.files]
        if held_out:
            chosen = [group[: self.tested] for group in first]
        else:
            rng, count = np.random.default_rng([1, seed]), self.options.pictures
            chosen = [rng.permutation(group[self.tested :])[:count] for group in first]
        labels = [name for name, group in zip(self.classes, chosen) for _ in group]
        return {"image": [str(name) for group in chosen for name in group], "label": labels}

    def train(self, changes, seed, folder, fold=None):
        """Train as the recipe with some changes says, and save the model and how long it took."""
        averages = [] if changes else [Averages()]
        changes, options = dict(changes), self.options
        grow, folds = changes.pop("grow", None), changes.pop("folds", None)
        recipe = training.recipe(changes.pop("recipe", "finetune"), epochs=options.epochs)
        known = {name: changes.pop(name) for name in [*changes] if name in recipe.to_dict()}
        recipe = recipe.replace(augmentation=recipe.augmentation.replace(**changes), **known)
        table = self.images(seed, held_out=False)
        if fold is not None:
            kept = [n for n in range(len(table["image"])) if n % folds != fold]
            table = {name: [column[n] for n in kept] for name, column in table.items()}
        keras.utils.set_random_seed(seed)
        model = from_checkpoint(options.weights, image_size=options.size, classes=len(self.classes))
        model.labels = tuple(self.classes)
        begun = time.process_time()
        self.fit(model, recipe, table, recipe.epochs - bool(grow), seed, averages)
        if grow:  # as the last epoch of the schedule would begin, and decaying to 0
            model, rate = resize(model, grow), recipe.for_model(model).learning_rate / recipe.epochs
            self.fit(model, recipe.replace(learning_rate=rate, warmup=0.0), table, 1, seed + 1, [])
        seconds = time.process_time() - begun
        kept = {"model": model.get_weights(), **{name: w for each in averages for name, w in each.kept.items()}}
        for name, weights in kept.items():
            model.set_weights(weights)
            model.save(folder / f"{name}.keras")
        return seconds

    def fit(self, model, recipe, table, epochs, seed, callbacks):
        """Train a model on a table."""
        data = training.image_table(
            table,
            images_dir=self.folder,
            task="single",
            class_names=self.classes,
            model=model,
            augmentation=recipe.augmentation,
            seed=seed,
            progress=False,
        )
        recipe.compile(model, data)
        model.fit(data, epochs=epochs, verbose=0, callbacks=[*recipe.callbacks, *data.callbacks, *callbacks])
        if recipe.lora is not None:
            training.merge_lora(model)

    def trained(self, changes, seed, fold=None):
        """Return the folder of a training, which is done now if it is not there."""
        changes = {name: value for name, value in changes.items() if name not in AT_TEST}
        name = " ".join(f"{name}={value}" for name, value in changes.items()).replace("/", "_") or "unchanged"
        folder = self.output / f"{name} {seed}{'' if fold is None else f' fold{fold}'}"
        if not (folder / "seconds.json").exists():
            folder.mkdir(parents=True, exist_ok=True)
            seconds = self.train(changes, seed, folder, fold)
            with complete(folder / "seconds.json") as part:
                part.write_text(json.dumps(seconds))
        return folder

    def accuracy(self, models, tta="", size="native"):
        """Return the accuracy on the test, in %, of models whose predictions are averaged."""
        table = self.images(0, held_out=True)
        if size != "native":
            models = [resize(open_model(model), size) for model in models]
        found = training.predict_table(
            {"image": table["image"]}, models, self.folder, tta=tta, values="names", progress=False
        )
        return 100 * float(np.mean(found["label"].to_numpy() == np.array(table["label"])))

    def measure(self, changes, seed):
        """Return `(accuracy in %, seconds of training)` with some changes."""
        folds = range(changes["folds"]) if "folds" in changes else [None]
        places = [self.trained(changes, seed, fold) for fold in folds]
        seconds = sum(json.loads((place / "seconds.json").read_text()) for place in places)
        models = [place / "model.keras" for place in places]
        if "last" in changes:
            epochs = sorted(places[0].glob("epoch*.keras"))[-changes["last"] :]
            models = [vit_keras.average(epochs)]
        if "ema" in changes:
            models = [places[0] / f"ema{changes['ema']}.keras"]
        if changes.get("join") == "weights":
            models = [vit_keras.average(models)]
        elif changes.get("join") == "nothing":
            return float(np.mean([self.accuracy([model]) for model in models])), seconds
        return self.accuracy(models, changes.get("tta", ""), changes.get("size", "native")), seconds

    def result(self, text, seed):
        """Return what `measure` does, from the file of an earlier call if it is there."""
        place = self.output / "results.json"
        known = json.loads(place.read_text()) if place.exists() else {}
        key = f"{text} | {seed}"
        if key not in known:
            known[key] = self.measure(dict(setting(each) for each in text.split()), seed)
            place.parent.mkdir(parents=True, exist_ok=True)
            with complete(place) as part:
                part.write_text(json.dumps(known, indent=1))
            print(f"seed {seed}  {known[key][0]:5.1f}  {known[key][1]:5.0f} s  {text}", flush=True)
        return known[key]


def main():
    """Measure, and print a line for each change."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("changes", nargs="*", help='such as "mixup=0.2" or "recipe=lora learning_rate=2e-3"')
    parser.add_argument("--weights", required=True)
    parser.add_argument("--output", type=Path, required=True, help="folder for trained models and results")
    parser.add_argument("--size", type=int, default=96, help="pixels of a side")
    parser.add_argument("--pictures", type=int, default=100, help="images of each class to learn from")
    parser.add_argument("--tested", type=int, default=800, help="images of all classes to test")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=2)
    options = parser.parse_args()
    measurement, seeds = Measurement(options), range(options.seeds)
    found = {text: np.array([measurement.result(text, seed) for seed in seeds]) for text in ["", *options.changes]}
    base = found.pop("")
    print(f"| change | accuracy of {options.folder.name}, points | time |\n| --- | --- | --- |")
    print(f"| none | {base[:, 0].mean():.1f} % | {base[:, 1].mean():.0f} s |")
    for text, rows in found.items():
        gains = rows[:, 0] - base[:, 0]
        error = gains.std(ddof=1) / len(gains) ** 0.5 if len(gains) > 1 else np.nan
        print(f"| `{text}` | {gains.mean():+.1f} ± {error:.1f} | × {rows[:, 1].mean() / base[:, 1].mean():.2f} |")


if __name__ == "__main__":
    main()

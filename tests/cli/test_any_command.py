"""Random commands: each does what it says, or refuses in a sentence of this package and leaves nothing behind."""

import csv
import random
import shutil
import traceback

import numpy as np
import pytest
from PIL import Image

import vit_keras
from vit_keras import cli
from vit_keras.anatomy import name_classes
from vit_keras.build import build
from vit_keras.config import ViTConfig
from vit_keras.visualize import METHODS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::UserWarning"),  # of these few images, there is much to warn of
]
PACKAGE = vit_keras.__path__[0]
SMALL = {"image_size": (32, 32), "patch_size": (8, 8), "num_layers": 2, "hidden_size": 16, "num_heads": 2}
SMALL |= {"mlp_dim": 24, "classes": 3}
MODELS = {
    "plain": {},
    "softmax": {"activation": "softmax"},
    "sigmoid": {"activation": "sigmoid"},
    "features": {"include_top": False},
    "tokens": {"include_top": False, "pooling": None},
    "mean": {"pooling": "gap"},
    "attention pooling": {"class_token": False, "pooling": "map"},
    "distilled": {"distillation_token": True, "pooling": "token+dist"},
    "not square": {"image_size": (32, 48)},
    "any size": {"image_size": None, "position_grid": (4, 4)},
    "gray": {"channels": 1},
    "four channels": {"channels": 4},
    "mixer": {"tokens_mlp_dim": 5, "pooling": "gap", "position": None},
    "rotary": {"position": None, "rope_theta": 100.0},
    "merged": {"merge_tokens": 2},
    "hybrid": {"patch_size": (1, 1), "resnet": (1,)},
}
TASKS = {
    "single": ["--label-column", "kind"],
    "multi": ["--label-column", "tags", "--separator", " "],
    "regression": ["--label-column", "age", "height"],
    "ordinal": ["--label-column", "level", "--task", "ordinal"],
}
"""How a table of each task is given; a model of each is fine-tuned once."""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with images of every kind, a folder of classes, a table of the same, and models."""
    place, rng, rows = tmp_path_factory.mktemp("commands"), np.random.default_rng(0), []
    for n in range(24):
        kind = ("cat", "dog", "eel")[n % 3]
        (place / "classes" / kind).mkdir(parents=True, exist_ok=True)
        pixels = rng.normal(80 * (n % 3) + 20, 30, (*rng.integers(18, 70, 2), 3))
        Image.fromarray(np.clip(pixels, 0, 255).astype("uint8")).save(place / "classes" / kind / f"{n}.png")
        tags = " ".join(name for name, there in (("red", n % 2), ("big", n % 3)) if there)
        labels = {"kind": kind, "tags": tags, "age": 1.5 * n, "height": 100 + n, "level": n % 4, "who": n // 2}
        rows.append({"image": f"{kind}/{n}.png", **labels, "weight": 1 + n % 2})
    with open(place / "table.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, [*rows[0]])
        writer.writeheader()
        writer.writerows(rows)
    (place / "images").mkdir()
    pixels = rng.integers(0, 256, (50, 40, 4), "uint8")
    color = Image.fromarray(pixels[..., :3])
    for name, image in {
        "color ü.jpg": color,
        "alpha.png": Image.fromarray(pixels),
        "gray.png": Image.fromarray(pixels[..., 0]),
        "deep.png": Image.fromarray(pixels[..., 0].astype("uint16") * 257),
        "one pixel.png": color.crop((0, 0, 1, 1)),
        "thin.bmp": color.crop((0, 0, 1, 50)),
        "palette.gif": color.quantize(16),
        "print.jpg": color.convert("CMYK"),
        "bits.tif": Image.fromarray(pixels[..., 0] > 99),
    }.items():
        image.save(place / "images" / name)
    (place / "bad").mkdir()
    whole = (place / "images" / "color ü.jpg").read_bytes()
    for name, content in {"empty.png": b"", "text.jpg": b"hello", "cut.jpg": whole[: len(whole) // 2]}.items():
        (place / "bad" / name).write_bytes(content)
    (place / "models").mkdir()
    for name, fields in MODELS.items():
        model = build(ViTConfig(**{**SMALL, **fields}))
        for weight in model.weights:
            if "seed" not in weight.path:
                weight.assign(0.3 * rng.standard_normal(weight.shape) + (weight.name == "gamma"))
        if fields.get("include_top", True):
            name_classes(model, ("cat", "dog", "eel"))
        model.save(place / "models" / f"{name}.keras")
    for task, options in TASKS.items():
        run = ["finetune", f"{place}/table.csv", "--images-dir", f"{place}/classes", *options, "--epochs", "1"]
        assert cli.main([*run, "--model", f"{place}/models/features.keras", "-o", f"{place}/runs/{task}"]) == 0
        shutil.copy(place / "runs" / task / "model.keras", place / "models" / f"{task}.keras")
    return place


def command_of(draw, place):
    """Return a random command, most of whose options go together."""
    models = sorted(map(str, (place / "models").iterdir()))
    single = sorted(map(str, (place / "images").iterdir()))
    model, task = draw.choice(models), draw.choice([*TASKS])
    classes = [f"{place}/classes"]
    table = [f"{place}/table.csv", "--images-dir", f"{place}/classes", *TASKS[task]]

    def images():
        folders = [f"{place}/images", f"{place}/classes/cat", f"{place}/bad", f"{place}/nowhere"]
        return draw.choices([*single, *folders], [4] * len(single) + [4, 4, 2, 1], k=draw.choice([1, 1, 2, 3]))

    def some(**options):
        """A few options, each with one of its values."""
        found = []
        for name, values in options.items():
            value = draw.choice(values)
            if draw.random() < 0.2:
                found += [f"--{name.replace('_', '-')}", *([] if value is True else map(str, value.split("|")))]
        return found

    def finetune():
        length = draw.choice([{"epochs": ["1", "2"]}, {"minutes": ["0.02", "0.05"]}])
        ((name, values),) = length.items()
        sets = ["flip=false", "mixup=0.2", "ema=0.9", "accumulate=2", "head=zeros", "loss=binary", "train=head"]
        sets += ["trivial_augment=true", "crop=None", "optimizer=lion", "dtype=mixed_bfloat16", "lora=2", "no=1"]
        recipes = ["probe", "lp_ft", "gradual", "lora", "vit", "augreg", "deit", "deit3", "scratch_small"]
        return [
            *(classes if draw.random() < 0.2 else table),
            *("--model", model, f"--{name}", draw.choice(values)),
            *some(image_size=["native", "32", "33", "32x48", "any"], batch_size=["1", "64"], recipe=recipes),
            *some(folds=["2", "who", "level"], metric=["accuracy", "map", "rmse"], seed=["3"]),
            *some(balance=["prior", True], no_probe=[True], calibrate=[True], errors=["raise"], set=sets),
            *some(held_out=["0.1", "0.5"], group_column=["who"], weight_column=["weight"]),
        ]

    def evaluate():
        split = f"{place}/runs/{task}/split.json"
        columns = [word for word in table if word not in ("--task", "ordinal")]
        of_task = f"{place}/models/{task}.keras" if draw.random() < 0.7 else model
        data = classes if draw.random() < 0.2 else columns
        return [of_task, *data, *some(only=[split], json=[True], errors=["raise"])]

    def predict_table():
        options = some(tta=["flip", "crops"], average=["logits"], values=["names", "numbers", "probabilities"])
        options += some(image_size=["32"], like=[f"{place}/table.csv"], batch_size=["5"], threshold=["0.3"])
        chosen = draw.choice([[model], [model] * 2, [f"{place}/models/{task}.keras"]])
        return [*table[:3], "--models", *chosen, *options]

    def export():
        options = some(raw=[True], top=["1", "50"], attention=[True], no_check=[True], json=[True], quantize=["int8"])
        return [model, *options, *some(check=["|".join(images())], calibration=["|".join(images())])]

    commands = {
        "finetune": (finetune, [""]),
        "evaluate": (evaluate, [".html"]),
        "predict-table": (predict_table, [".csv", ".tsv"]),
        "export": (export, [".onnx", ".html"]),
        "predict": (
            lambda: [*images(), "--model", model, *some(top=["1", "2000"], json=[True], csv=[True], errors=["raise"])],
            [".csv", ".json", ".jsonl"],
        ),
        "embed": (
            lambda: [*images(), "--model", model, *some(layer=["tokens", "head"], batch_size=["2"], errors=["raise"])],
            [".npz", ".npy"],
        ),
        "attention": (
            lambda: [
                *(*images(), "--model", model, *some(method=[*METHODS], all_methods=[True])),
                *some(style=["overlay", "paper"], **{"class": ["cat", "0", "7"]}),
            ],
            [".png", ".jpg", ".webp", ".h5"],
        ),
        "explore": (lambda: [*images(), "--model", model, *some(max_mb=["0.1"], **{"class": ["cat", "2"]})], [".html"]),
        "average": (lambda: [model] * draw.choice([1, 2]), [".keras"]),
        "convert": (lambda: [model], [".keras", ".safetensors", ".npz", ".weights.h5"]),
    }
    name = draw.choice([*commands])
    options, suffixes = commands[name]
    written = f"{place}/out/file{draw.choice(suffixes)}"
    chosen = options()
    if name == "convert":
        return [name, *chosen, written, *some(image_size=["48", "any"], format=["timm", "google"])]
    return [name, *chosen, "-o", written]


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_a_random_command_ends_well(first, place, monkeypatch, capsys):
    errors, wrong = [], []
    complain = cli.complain
    monkeypatch.setattr(cli, "complain", lambda error: (errors.append(error), complain(error)))
    for number in range(first, first + 20):
        command = command_of(random.Random(number), place)
        shutil.rmtree(place / "out", ignore_errors=True)
        (place / "out").mkdir()
        errors.clear()
        try:
            status = cli.main(command)
        except SystemExit as end:  # options that argparse refuses
            status = end.code
        except Exception as error:
            status = error
        left = [path.name for path in (place / "out").rglob("*")]
        said = capsys.readouterr().err
        if status == 0:
            fine = left  # several images have numbered files
        elif status == 1 and errors:
            sentence = said.strip().splitlines()[-1]
            fine = errors[0].args and _is_ours(errors[0]) and not left and sentence.startswith("vit-keras: ")
        else:
            fine = status == 2 and not left
        if not fine:
            wrong.append(f"{number}: {command}\n{status!r} {left}\n{said[-2000:]}{_trace([*errors, status])}")
    assert not wrong, "\n\n".join(wrong)


def _is_ours(error):
    """Whether this package raised an error, not a library three levels down."""
    return isinstance(error, OSError) or traceback.extract_tb(error.__traceback__)[-1].filename.startswith(PACKAGE)


def _trace(errors):
    return "".join("".join(traceback.format_exception(each)) for each in errors[:1] if isinstance(each, Exception))

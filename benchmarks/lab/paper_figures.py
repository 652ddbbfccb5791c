"""Make the figures and tables of docs/paper.md.

    python -m benchmarks.lab.paper_figures [NAME …] [--weights FILE] [--pictures FOLDER]

The figures on real weights are of Google's ViT-Ti/16 (AugReg, ImageNet): the published one, or --weights. FOLDER holds
photographs, and labels.json with the ImageNet class of each by its name. Without it, `resolution` stays as it is.
`tables` writes the tables of the page anew from the JSONs in docs/paper; it needs nothing else. Only the cat of
scikit-image (CC0) is shown.
"""

import argparse
import io
import json
import os
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "torch")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
from PIL import Image

import vit_keras
from vit_keras import training, visualize, vit
from vit_keras.training.masked import patchify

from . import scaling_study

PAGE = Path(__file__).parents[2] / "docs" / "paper.md"
FOLDER = PAGE.with_suffix("")
SIZES = (160, 224, 384)
GRAY = 0.62
NOTHING = "*Not measured yet: the commands at the top of this page do it.*"


def cat():
    """Return the photograph that may be shown."""
    from skimage import data

    return data.chelsea()


def save(figure, path, width):
    """Write a figure at twice the width that the page shows."""
    file = io.BytesIO()
    figure.savefig(file, dpi=2 * width / figure.get_figwidth(), facecolor="white")
    Image.open(file).convert("RGB").save(path, quality=86, method=6)
    print(f"{path}: {path.stat().st_size / 1000:.0f} kB")


def panel(figure, place, picture, title):
    """Draw an image in a part `(left, bottom, width, height)` of a figure."""
    axis = figure.add_axes(place)
    axis.imshow(picture, interpolation="nearest")
    axis.set_axis_off()
    axis.set_title(title, fontsize=10)
    return axis


def cut(image, patch):
    """Return the patches of an image, `(down, across, patch, patch, 3)`."""
    grid = [n // patch for n in image.shape[:2]]
    flat = keras.ops.convert_to_numpy(patchify(image[None], (patch, patch)))
    return flat.reshape(*grid, patch, patch, 3)


def together(patches, gap=0):
    """Return patches as one image, with white gaps between them."""
    down, across, height, width, _ = patches.shape
    edges = [(0, 0), (0, 0), (0, gap), (0, gap), (0, 0)]
    padded = np.pad(patches, edges, constant_values=1.0).swapaxes(1, 2)
    image = padded.reshape(down * (height + gap), across * (width + gap), 3)
    return image[: image.shape[0] - gap, : image.shape[1] - gap]


def shown(model, picture):
    """Return what the model sees of an image, in [0, 1]."""
    return np.clip((model.preprocess(picture)[0] + 1) / 2, 0, 1)


def draw_patches(model, picture):
    """Draw the image, its patches, and their row (the paper's Figure 1)."""
    image = shown(model, picture)
    patches = cut(image, model.config.patch_size[0])
    figure = visualize.new_figure(7.8, 4.1)
    figure.set_layout_engine("none")
    panel(figure, (0.02, 0.25, 0.45, 0.67), image, "image, 224 × 224 × 3")
    panel(figure, (0.53, 0.25, 0.45, 0.67), together(patches, 3), "14 × 14 patches of 16 × 16 × 3")
    word = np.ones((16, 16, 3))
    row = [word * (0.16, 0.4, 0.62), word, *patches[5, 3:7], word, *patches[6, 9:11], word, *patches[11, 6:10], word]
    count = len(row)
    axis = panel(figure, (0.02, 0.02, 0.96, 0.16), together(np.stack(row)[None], 3), "")
    for place in (1, 6, 9, 14):
        axis.text(place * 19 + 8, 8, "…", ha="center", va="center", fontsize=12)
    axis.text(8, 8, "class", ha="center", va="center", fontsize=7, color="white")
    axis.set_xlim(-2, count * 19 - 1)
    axis.set_title("196 words in one row, and the class token before them", fontsize=10)
    return figure


def draw_masked(model, picture):
    """Draw corrupted patches and the mean colors to predict (appendix B.1.2)."""
    image = shown(model, picture)
    patches = cut(image, model.config.patch_size[0])
    grid = patches.shape[:2]
    random = np.random.default_rng(0)
    fate, others = random.random(grid), random.permutation(patches.reshape(-1, *patches.shape[2:]))
    corrupted = patches.copy()
    corrupted[fate < 0.45] = others.reshape(patches.shape)[fate < 0.45]
    corrupted[fate < 0.4] = GRAY
    classes = training.MaskedPatchPrediction(model, seed=0).patch_classes(model.preprocess(picture))
    classes = keras.ops.convert_to_numpy(classes).reshape(grid)
    colors = (np.stack([classes // 64, classes // 8 % 8, classes % 8], axis=-1) + 0.5) / 8
    targets = np.ones_like(patches)
    targets[fate < 0.5] = colors[fate < 0.5][:, None, None]
    figure = visualize.new_figure(7.8, 2.8)
    figure.set_layout_engine("none")
    titles = ("patches", "half of them corrupted", "mean colors to predict")
    for n, (each, title) in enumerate(zip((patches, corrupted, targets), titles)):
        panel(figure, (0.01 + 0.333 * n, 0.01, 0.315, 0.88), together(each, 2), title)
    return figure


def positions_of(model):
    """Return the variable of the position table."""
    return model.get_layer("Transformer_posembed_input").pe


def flat_positions(model, size):
    """Return a model for other images whose position table is interpolated as a list, not as a grid: the control."""
    resized = vit_keras.resize(model, size)
    table = keras.ops.convert_to_numpy(positions_of(model))[0]
    places = np.linspace(0, len(table) - 2, positions_of(resized).shape[1] - 1)
    flat = [np.interp(places, np.arange(len(table) - 1), channel) for channel in table[1:].T]
    positions_of(resized).assign(np.concatenate([table[:1], np.stack(flat, axis=-1)])[None])
    return resized


def draw_positions(model, size=384):
    """Draw how similar one position is to all, at the trained size and at a larger one, by both interpolations."""
    figure = visualize.new_figure(7.8, 2.9)
    figure.set_layout_engine("none")
    models = (model, vit_keras.resize(model, size), flat_positions(model, size))
    names = ("as trained, {} × {}", "2-D, {} × {}", "1-D, {} × {}")
    for n, (each, name) in enumerate(zip(models, names)):
        similarity = visualize.position_similarity(each)
        down, across = similarity.shape[:2]
        place = round(0.36 * down), round(0.36 * across)
        axis = figure.add_axes((0.01 + 0.3 * n, 0.02, 0.285, 0.86))
        drawn = axis.imshow(similarity[place], cmap="viridis", vmin=-1, vmax=1, interpolation="nearest")
        axis.set_axis_off()
        axis.set_title(name.format(down, across), fontsize=10)
    bar = figure.add_axes((0.91, 0.06, 0.012, 0.76))
    figure.colorbar(drawn, cax=bar, ticks=(-1, 0, 1), label="cosine similarity")
    return figure


def measure_resolution(model, pictures, labels, sizes=SIZES):
    """Return how a model does at other sizes than its own, with positions interpolated in 2-D and in 1-D.

    Args:
        model: A ViT with learned positions, trained at one size.
        pictures: Photographs, of any size.
        labels: The class of each.
        sizes: Pixels of a side.

    Returns:
        A dictionary for each size and interpolation.
    """
    own, patch = model.config.image_size[0], model.config.patch_size[0]
    ways = {"2-D": vit_keras.resize, "1-D": flat_positions}
    runs = [(own, "as trained")] + [(size, way) for size in sizes if size != own for way in ways]
    logits = {}
    for size, way in runs:
        resized = ways[way](model, size) if way in ways else model
        outputs = [keras.ops.convert_to_numpy(resized(resized.preprocess(picture)))[0] for picture in pictures]
        logits[size, way] = np.stack(outputs)
    return compare_resolutions(logits, labels, logits[own, "as trained"], patch)


def compare_resolutions(logits, labels, reference, patch):
    """Return what `measure_resolution` does, from the logits `(pictures, classes)` of each size and interpolation."""
    rows = []
    for (size, way), each in sorted(logits.items(), key=lambda item: item[0][0]):
        shares, first = keras.ops.convert_to_numpy(keras.ops.softmax(each)), each.argmax(-1)
        rows.append({
            "image_size": size, "words": (size // patch) ** 2, "positions": way, "pictures": len(labels),
            "right": int(np.sum(first == labels)), "probability": float(shares[np.arange(len(labels)), labels].mean()),
            "same": int(np.sum(first == reference.argmax(-1))),
            "cosine": float(np.sum(unit(each) * unit(reference), axis=-1).mean()),
        })  # fmt: skip
    return rows


def unit(vectors):
    """Return vectors at length 1."""
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def resolution_table(rows):
    """Return the lines of the table of other sizes."""
    if not rows:
        yield NOTHING
        return
    yield "| image | words | positions | right | probability | first class as at 224 | cosine of the logits with 224 |"
    yield "|---|---|---|---|---|---|---|"
    for r in rows:
        yield (
            f"| {r['image_size']} | {r['words']} | {r['positions']} | {r['right']} of {r['pictures']} "
            f"| {r['probability']:.2f} | {r['same']} of {r['pictures']} | {r['cosine']:.3f} |"
        )


def cell(summary):
    """Return mean, standard deviation and number of runs as text."""
    if summary is None:
        return "–"
    count, mean, spread = summary
    return f"{mean:.1f} ({count})" if spread is None else f"{mean:.1f} ± {spread:.1f} ({count})"


def models_table():
    """Return the lines of the table of architectures."""
    what = {
        "ViT": "patches of 4 × 4 pixels, two blocks, hidden size 32",
        "hybrid": "a convolution, one residual block, words of 1 × 1 cell, one block, hidden size 32",
        "ResNet": "a convolution, two residual blocks of 32 and 64 filters, the mean over the image",
    }
    yield "| model | what it is | parameters | MFLOP for each image seen |"
    yield "|---|---|---|---|"
    for name, text in what.items():
        model, flops = scaling_study.build(name)
        yield f"| {name} | {text} | {model.count_params():,} | {flops / 1e6:.1f} |"


def data_table(results):
    """Return the lines of the table of the effect of data, and its figure."""
    rows = scaling_study.rows_of_data(results)
    if not rows:
        yield NOTHING
        return
    yield "| images | each is seen | ViT | ResNet | ResNet − ViT |"
    yield "|---|---|---|---|---|"
    for pictures, seen, cells in rows:
        gap = cells["ResNet"][1] - cells["ViT"][1]
        yield f"| {pictures:,} | {seen:.1f} × | {cell(cells['ViT'])} | {cell(cells['ResNet'])} | {gap:+.1f} |"
    yield ""
    yield '<img src="paper/study_data.png" width="620" alt="Accuracy against training images: ResNet and ViT">'


def compute_table(results):
    """Return the lines of the table of the effect of compute, and its figure."""
    rows = scaling_study.rows_of_compute(results)
    if not rows:
        yield NOTHING
        return
    yield "| training compute | ViT | hybrid | ResNet |"
    yield "|---|---|---|---|"
    for budget, cells in rows:
        yield f"| {budget:g} TFLOP | {' | '.join(cell(cells[name]) for name in ('ViT', 'hybrid', 'ResNet'))} |"
    yield ""
    yield '<img src="paper/study_compute.png" width="620" alt="Accuracy against training compute of three models">'


def tables(folder=FOLDER):
    """Return the tables of the page by name, from the JSONs."""
    results = scaling_study.read(folder / "study.json")
    made = {
        "resolution": resolution_table(scaling_study.read(folder / "resolution.json")),
        "models": models_table(),
        "data": data_table(results),
        "compute": compute_table(results),
    }
    return {name: "\n".join(lines) for name, lines in made.items()}


def with_tables(page, made):
    """Return a page with what stands between `<!-- name -->` and `<!-- end of name -->` replaced."""
    for name, table in made.items():
        first, last = f"<!-- {name} -->", f"<!-- end of {name} -->"
        if page.count(first) != 1 or page.count(last) != 1:
            raise ValueError(f"The page must have {first} and {last}, once each.")
        before, after = page.split(first)[0], page.split(last)[1]
        page = f"{before}{first}\n\n{table}\n\n{last}{after}"
    return page


def photographs(folder):
    """Return the paths of photographs, and the class of each."""
    labels = json.loads((folder / "labels.json").read_text(encoding="utf-8"))
    return [folder / name for name in sorted(labels)], [labels[name] for name in sorted(labels)]


FIGURES = {
    "patches": (780, lambda model: draw_patches(model, cat())),
    "positions": (780, lambda model: draw_positions(model)),
    "figure6": (520, lambda model: visualize.figure6(model, cat())),
    "masked": (780, lambda model: draw_masked(model, cat())),
}
"""By name: the width on the page in pixels, and what draws it."""


def main(arguments=None):
    """Make what is named, or all."""
    names = (*FIGURES, "resolution", "tables")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names)}; default: all")
    parser.add_argument("--weights", help="the file of Google's AugReg ViT-Ti/16, instead of the published one")
    parser.add_argument("--pictures", type=Path, help="folder of photographs with labels.json")
    chosen = parser.parse_args(arguments)
    if unknown := sorted({*chosen.names} - {*names}):
        parser.error(f"names are {', '.join(names)}. Received: {', '.join(unknown)}")
    wanted = chosen.names or names
    paths, labels = photographs(chosen.pictures) if chosen.pictures else ([], [])
    if {*wanted} - {"tables"}:
        model = vit.vit_ti16(**({"weights": chosen.weights} if chosen.weights else {}))
    for name in wanted:
        if name in FIGURES:
            width, make = FIGURES[name]
            save(make(model), FOLDER / f"{name}.webp", width)
        elif name == "resolution" and paths:
            lines = [json.dumps(row) for row in measure_resolution(model, paths, labels)]
            (FOLDER / "resolution.json").write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")
    if "tables" in wanted:
        PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8"), tables()), encoding="utf-8")


if __name__ == "__main__":
    main()

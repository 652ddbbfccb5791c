"""Print the tables of docs/faithfulness.md: how faithful each kind of map is.

    python -m benchmarks.lab.faithfulness WEIGHTS PICTURES

WEIGHTS is a checkpoint with classes, PICTURES a folder of JPEG files. A `labels.json` in it, `{file: class}`, gives
their classes; without it, the predicted classes are used.
"""

import argparse
import json
from pathlib import Path

import vit_keras
from vit_keras import visualize
from vit_keras.visualize.methods import OF_A_CLASS


def from_layer(method, start):
    """Return the method, started at a block."""
    return {"method": method, "start_layer": start} if start else method


def table(columns, rows):
    """Print a table in Markdown."""
    print("| " + " | ".join(columns) + " |\n|" + "---|" * len(columns))
    for row in rows:
        print("| " + " | ".join(str(cell) for cell in row) + " |")
    print(flush=True)


def deletion_and_insertion(model, pictures, metric, target):
    """Print the table of all methods."""
    half, last = model.config.num_layers // 2, model.config.num_layers * 2 // 3
    methods = {name: name for name in visualize.METHODS}
    for name, start in (("relevance", half), ("relevance", last), ("rollout", last), ("alti", last)):
        methods[f"{name}, from block {start}"] = from_layer(name, start)
    result = visualize.evaluate_maps(model, pictures, methods, metric=metric, target=target)
    print(f"### {str(result).splitlines()[0]}\n")
    rows = []
    for row in result.rows():
        numbers = [f"{row[key]:.3f}" for key in ("deletion", "insertion", "gap")]
        paired = (
            ["", ""]
            if row["gain"] is None
            else [f"{row['gain']:+.3f} ± {row['error']:.3f}", f"{row['wins']}/{row['images']}"]
        )
        rows.append([row["method"], *numbers, *paired])
    table(("map", "deletion (low)", "insertion (high)", "gap", "gain over rollout", "wins"), rows)


def pointing(model, pictures, classes, mosaics):
    """Print the table of the grid pointing game."""
    layers = model.config.num_layers
    methods = {name: name for name in ("rollout", "alti", *OF_A_CLASS)}
    for name in ("relevance", "gradient_rollout", "legrad"):
        for start in sorted({layers // 6, layers // 3, layers // 2, layers * 2 // 3, layers * 5 // 6, layers - 1}):
            methods[f"{name}, from block {start}"] = from_layer(name, start)
    rows = []
    for name, method in methods.items():
        result = visualize.grid_pointing_game(model, pictures, method, classes=classes, mosaics=mosaics)
        rows.append([name, f"{result.mean:.3f} ± {result.error:.3f}", f"{result.hits.mean():.2f}"])
    targets = f"{result.energy.size} targets in {len(result.energy)} mosaics"
    print(f"### grid pointing game: chance {result.chance:.3f}; {targets}\n")
    table(("map", "energy in the right image", "highest there"), rows)


def randomized(model, pictures):
    """Print the table of the cascading randomization."""
    results = {}
    for name in ("rollout", "attention", "alti", "relevance", "gradient_rollout", "hirescam", "legrad"):
        results[name] = visualize.randomization_check(model, pictures, name)
    print(f"### randomized weights: Spearman with the model's own map; {len(pictures)} images\n")
    stages = next(iter(results.values())).stages
    rows = [[stage, *(f"{r.correlation[n].mean():.2f}" for r in results.values())] for n, stage in enumerate(stages)]
    table(("randomized down to", *results), rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights", type=Path)
    parser.add_argument("pictures", type=Path)
    parser.add_argument("--mosaics", type=int, default=None)
    parser.add_argument("--only", choices=("removal", "pointing", "randomized"), nargs="*")
    options = parser.parse_args()
    model = vit_keras.from_checkpoint(str(options.weights))
    pictures = sorted(options.pictures.glob("*.jpg"))
    known = options.pictures / "labels.json"
    labels = json.loads(known.read_text()) if known.exists() else {}
    classes = [labels.get(picture.name, "predicted") for picture in pictures]
    wanted = options.only or ("removal", "pointing", "randomized")
    if "pointing" in wanted:
        pointing(model, pictures, classes, options.mosaics)
    if "randomized" in wanted:
        randomized(model, pictures[:8])
    if "removal" in wanted:
        for metric, target in (("token_removal", None), ("token_removal", "predicted"), ("pixel", "predicted")):
            deletion_and_insertion(model, pictures, metric, target)


if __name__ == "__main__":
    main()

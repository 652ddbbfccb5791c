"""Write `vit_keras/checkpoints/sizes.csv`: parameters and operations of each published file, from its architecture.

python tools/make_sizes.py
"""

import csv
from pathlib import Path

from vit_keras import cost
from vit_keras.checkpoints import registry
from vit_keras.checkpoints.published import published_config

TARGET = Path(registry.__file__).with_name("sizes.csv")


def rows():
    """Return `(name, parameters, macs)` of each row of the registry whose architecture can be built."""
    for checkpoint in registry.listed():
        config = published_config(checkpoint)
        if config is not None:
            found = cost.cost(config)
            yield checkpoint.name, found.parameters, found.flops // 2


if __name__ == "__main__":
    with TARGET.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("name", "parameters", "macs"))
        writer.writerows(rows())
    print(f"{sum(1 for _ in TARGET.open())} lines, {TARGET.stat().st_size} bytes: {TARGET}")

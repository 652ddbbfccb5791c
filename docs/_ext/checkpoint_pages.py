"""Tables of checkpoints: families with their measured exactness, published names, and the architectures tried."""

import csv
import html
import json
import re

from generated import DOCS, write

from vit_keras import checkpoints
from vit_keras.checkpoints import families, registry
from vit_keras.checkpoints.augreg import AUGREG_ADAPTED, AUGREG_AUGMENTATIONS, AUGREG_MODELS

INDEX = """# Published checkpoints

`open_model` takes the name of a published file, or any file that you have. The tables below are
made from the tables that the package itself reads. Click on a column to sort a table, and type a word to filter it.

::::{{grid}} 1 2 2 2
:gutter: 3

:::{{grid-item-card}} Open any checkpoint
:link: ../checkpoints
:link-type: doc
Formats, families, offline use, what is adapted, what is written.
:::
:::{{grid-item-card}} {families} families of files
:link: families
:link-type: doc
See whose files they are, how they were compared with their originals, and the largest difference.
:::
:::{{grid-item-card}} Choose one of {published} published models
:link: published
:link-type: doc
Choose by size, accuracy, license and task, with a figure. Also AugReg's 52,268 files.
:::
:::{{grid-item-card}} {tried} architectures tried
:link: tried
:link-type: doc
Every ViT of timm and transformers, alone and with its `config.json`: exact, refused, or warned.
:::
::::

```python
from vit_keras import checkpoints

for found in checkpoints.available(name="*dinov2*"):
    print(found.name, found.image_size, found.license)
```

On the command line, `vit-keras models dinov2` lists them and `vit-keras inspect FILE` describes a file.

```{{toctree}}
:hidden:

Open any checkpoint <../checkpoints>
families
published
tried
Add a family <../add_a_family>
```
"""

FAMILIES = """---
html_theme.sidebar_secondary.remove: true
---
# Families of files

A family is a way to name and to lay out weights. The package detects it from the names of the arrays in a file.

- *Comparisons* is the number of comparisons with the original implementation, on models with seeded weights.
- *Difference* is the largest difference from the output of the original, relative to the largest output.
  `python -m benchmarks.lab.exactness` measures it. The tests require 1e-5 on every backend (1e-4 behind a ResNet).

A family without a number is read by the rules of a different family that has one, or it is compared with files that
this package wrote. [The guide](../checkpoints.md#families) says what to pass for each family.

{table}

These families are known, but refused with the reason: {refused}.
"""

PUBLISHED = """---
html_theme.sidebar_secondary.remove: true
---
# Choose a model

Pass a name to `open_model`. The file is downloaded once and verified. On the command line,
`vit-keras models --max-mb 30 --sort top1 --license apache-2.0 --task classify` selects models like the filters below.

## Which one for …?

{choices}

Fine-tune at the size of your task: `classes=` replaces the head, and `image_size=` resamples the positions.

## All {published} published names

- *top-1* is the accuracy on ImageNet-1k in percent. It is empty if none is known. We did not measure it: the column
  *by* names who did.
- *MB* is the size of the file. With ~, it is the size of its parameters in float32.
- *GMAC* is 10⁹ multiplications for one image. Parameters and GMAC are computed from the architecture
  (`python tools/make_sizes.py`).

Point at the figure, or press ← and → in it. A click shows the row.

{table}

## AugReg's 52,268 files

These are all files of *How to train your ViT?* ([arXiv 2106.10270](https://arxiv.org/abs/2106.10270)). Their names
are not listed, but follow this grammar:

| part of the name | values |
|---|---|
| architecture | {models} |
| augmentation | {augmentations} |
| fine-tuned on | {adapted} |

The file name is enough to open one, such as
`open_model("augreg/Ti_16-i21k-300ep-lr_0.001-aug_none-wd_0.03-do_0.0-sd_0.0--imagenet2012-steps_20k-lr_0.03-res_224.npz")`.
"""

CHOICES = (
    ("a first try, a test", "vit_cifar10", "part of the package, with ten classes and no download"),
    ("ImageNet on a phone or in a browser", "timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k", ""),
    ("ImageNet on a CPU", "timm/deit3_small_patch16_224.fb_in22k_ft_in1k", ""),
    ("the best below 100 MB", "timm/eva02_small_patch14_336.mim_in22k_ft_in1k", "but slower: 336 pixels"),
    ("the best below 400 MB", "timm/eva02_base_patch14_448.mim_in22k_ft_in22k_in1k", "but slower: 448 pixels"),
    ("the best of all", "timm/eva02_large_patch14_448.mim_m38m_ft_in22k_in1k", ""),
    (
        "fine-tuning on your classes",
        "timm/vit_base_patch16_224.augreg2_in21k_ft_in1k",
        "first trained on 21,000 classes",
    ),
    ("embeddings, search, few labels", "facebook/dinov2-with-registers-base", "trained without labels"),
    ("segmentation, depth, detection", "facebook/dinov2-with-registers-large", "clean feature maps"),
    ("classes in words", "google/siglip2-base-patch16-224", "with a text tower: `open_image_text`"),
    ("the paper's numbers", "B_16/imagenet21k+imagenet2012", "Google's file of 2020"),
)
"""What a model is for, its name, and why."""

TRIED = """---
html_theme.sidebar_secondary.remove: true
---
# Architectures tried

{intro}

{table}
"""


def table(columns, rows, label, **data):
    """Return an HTML table that the page's script sorts and filters. Cells are text, or HTML that begins with `<`.

    `data` is for the script: `choose` has `[column, limit, …]` of menus, without limits with the values of the column;
    `plot` has the columns of a scatter, up and across (two to choose from); `sort` the column to begin with.
    """
    data = "".join(f" data-{name}='{html.escape(json.dumps(value))}'" for name, value in data.items())
    cell = "<td>{}</td>".format
    head = "".join(f'<th scope="col">{html.escape(column)}</th>' for column in columns)
    body = "\n".join(
        "<tr>" + "".join(cell(v if v.startswith("<") else html.escape(v)) for v in row) + "</tr>" for row in rows
    )
    name = html.escape(label)
    return (
        f'```{{raw}} html\n<div class="pst-scrollable-table-container filterable" data-label="{name}"{data}>'
        f'<table class="table"><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table></div>\n```'
    )


def code(text):
    return f"<code>{html.escape(text)}</code>"


def exactness():
    """Return `{family: (comparisons, difference)}` of the table in docs/checkpoints.md."""
    text = (DOCS / "checkpoints.md").read_text(encoding="utf-8").partition("## Exactness")[2]
    rows = re.findall(r"^\| `([\w-]+)` \| (\d+) \| [\d.e-]+ \| ([\d.e-]+) \|$", text, re.MULTILINE)
    return {name: (int(count), float(difference)) for name, count, difference in rows}


def family_rows():
    measured, published = exactness(), {}
    for checkpoint in registry.listed():
        published[checkpoint.family] = published.get(checkpoint.family, 0) + 1
    for name, family in families.FAMILIES.items():
        if family.refused is None:
            count, difference = measured.get(name, ("", None))
            shown = "" if difference is None else f"{difference:.1e}"
            yield code(name), family.title, str(published.get(name, "")), str(count), shown


def choice_rows():
    """Return the lines of the list of recommendations, with what the registry knows of each file."""
    for purpose, name, why in CHOICES:
        c = registry.named(name)
        facts = [why, f"{c.megabytes:.0f} MB", f"top-1 {c.top1:.1f} %" if c.top1 else "", c.license]
        yield f"- **{purpose[0].upper()}{purpose[1:]}**: `{name}`: {', '.join(filter(None, facts))}."


def published_rows():
    known = {checkpoint.name for checkpoint in checkpoints.available()}
    for c in registry.listed():
        if c.name in known:
            name = re.sub(r"(?<=[/_.+-])", "<wbr>", html.escape(c.name))
            yield (
                *(
                    f"<code>{name}</code>",
                    f"{c.top1:.1f}" if c.top1 else "",
                    f"{'' if c.bytes else '~'}{c.megabytes:.0f}",
                ),
                *(f"{c.macs / 1e9:.{1 if c.macs >= 1e9 else 2}f}", str(c.image_size)),
                *(f'<a href="{html.escape(c.license_url)}">{html.escape(c.license)}</a>', c.task),
                *(c.labels or (str(c.classes) if c.classes else ""), f"{c.parameters / 1e6:.1f}"),
                *(c.family, c.top1_source or ""),
            )


def tried_rows():
    with open(DOCS / "sweep.csv", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            yield row["library"], row["model"], row["file"], row["outcome"], row["reason"]


def write_pages(app):
    """Write the pages of tables."""
    tried, guide = list(tried_rows()), (DOCS / "checkpoints.md").read_text(encoding="utf-8")
    built = [family for family in families.FAMILIES.values() if family.refused is None]
    refused = [family.title for family in families.FAMILIES.values() if family.refused is not None]
    columns = ("family=", "whose files", "published names", "comparisons", "difference")
    names = ("name", "top-1", "MB", "GMAC", "px", "license", "task", "classes", "M params", "family", "by")
    write(
        "tables/index.md",
        INDEX.format(
            families=len(built),
            published=len(checkpoints.available()),
            tried=len({(library, model) for library, model, *_ in tried}),
        ),
    )
    rows = list(family_rows())
    write(
        "tables/families.md",
        FAMILIES.format(table=table(columns, rows, "families"), refused=", ".join(refused)),
    )
    menus = [["MB", 30, 100, 400, 1500], ["task"], ["px"], ["license"], ["family"]]
    plot = ["top-1", "MB", "GMAC"]
    listed = table(names, published_rows(), "checkpoints", choose=menus, plot=plot, sort="top-1")
    write(
        "tables/published.md",
        PUBLISHED.format(
            table=listed,
            choices="\n".join(choice_rows()),
            published=len(checkpoints.available()),
            models=", ".join(f"`{model}`" for model in AUGREG_MODELS),
            augmentations=", ".join(f"`{each}`" for each in AUGREG_AUGMENTATIONS),
            adapted=", ".join(f"`{each}`" for each in AUGREG_ADAPTED),
        ),
    )
    intro = guide.partition("[sweep.csv](sweep.csv) shows")[2].partition("\n## ")[0]
    columns = ("library", "architecture", "file", "outcome", "reason")
    intro = f"This table shows{intro}".replace("](", "](../")
    write("tables/tried.md", TRIED.format(intro=intro, table=table(columns, tried, "files")))


def setup(app):
    app.connect("builder-inited", write_pages)
    return {"parallel_read_safe": True}

"""Write `data/torch/`: small files as PyTorch saves them, and `expected.npz` with what is in them.

Run with PyTorch installed: `python tests/goldens/make_torch_files.py`. The tests read the files without it.
"""

import argparse
import collections
import datetime
import io
import pathlib
import warnings
import zipfile

import numpy as np
import torch

FOLDER = pathlib.Path(__file__).parents[1] / "data" / "torch"
LEGACY = {"_use_new_zipfile_serialization": False}


def values(shape, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return (torch.randn(shape, generator=generator) * 4).to(dtype)


def plain():
    """Every type that NumPy has, and views that are not consecutive in the file."""
    base = values((4, 6))
    floats = {str(t)[6:]: values((2, 3), t) for t in (torch.float64, torch.float32, torch.float16, torch.bfloat16)}
    eights = {str(t)[6:]: values((2, 3), t) for t in (torch.float8_e4m3fn, torch.float8_e5m2)}
    integers = {str(t)[6:]: values((2, 3)).abs().to(t) for t in (torch.int64, torch.int32, torch.int16, torch.uint8)}
    more = {"int8": values((2, 3)).to(torch.int8), "uint16": values((2, 3)).abs().to(torch.uint16)}
    views = {
        "whole": base,
        "transposed": base.t(),
        "rows": base[1:3],
        "columns": base[:, 1::2],
        "permuted": values((2, 3, 4)).permute(2, 0, 1),
        "expanded": values((3, 1)).expand(3, 5),
        "tied": base,
    }
    odd = {"bool": values((2, 3)) > 0, "scalar": torch.tensor(2.5), "empty": torch.zeros(0, 3)}
    parameters = {"parameter": torch.nn.Parameter(values((3, 2)))}
    return collections.OrderedDict(**floats, **eights, **integers, **more, **views, **odd, **parameters)


def network():
    torch.manual_seed(0)
    visual = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 2), torch.nn.BatchNorm2d(4), torch.nn.Conv2d(4, 2, 2))
    return torch.nn.Sequential(collections.OrderedDict(visual=visual))


class Projection(torch.nn.Module):
    """A kernel and nothing that could be compiled: TorchScript saves the code of a module too."""

    def __init__(self, *shape):
        super().__init__()
        self.weight = torch.nn.Parameter(values(shape))

    def forward(self, x: torch.Tensor):
        return x


class Visual(torch.nn.Module):
    """The image tower."""

    def __init__(self):
        super().__init__()
        self.conv1, self.proj = Projection(2, 3, 2, 2), Projection(3, 2)
        self.register_buffer("steps", torch.arange(3))
        self.input_resolution, self.sizes = 4, [1, 2]

    def forward(self, x: torch.Tensor):
        return self.proj(self.conv1(x))


class Tower(torch.nn.Module):
    """Modules in modules, as in OpenAI's CLIP."""

    def __init__(self):
        super().__init__()
        self.visual = Visual()
        self.logit_scale = torch.nn.Parameter(torch.tensor(2.5))

    def forward(self, x: torch.Tensor):
        return self.visual(x)


def training():
    """What a training script saves."""
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    model(values((1, 3, 4, 4))).sum().backward()
    optimizer.step()
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 3).state_dict(),
        "epoch": 3,
        "max_accuracy": np.float64(71.5),
        "history": np.arange(3.0),
        "counter": collections.defaultdict(int, a=1),
        "classes": {1, 2},
        "started": datetime.datetime(2021, 6, 1, tzinfo=datetime.timezone(datetime.timedelta(0))),
        "args": argparse.Namespace(lr=5e-4, output_dir=pathlib.PurePosixPath("/out"), device=torch.device("cpu")),
        "rng_state": torch.get_rng_state()[:16].clone(),
    }


def several():
    one, two = {"a": values((2,))}, {"a": values((2,), seed=1)}
    return {"student": one, "teacher": two, "dino_loss": {"center": values((1, 3))}, "epoch": 1}


def unreadable():
    return {
        "weight": values((2, 3)),
        "complex": torch.ones(2, dtype=torch.complex64),
        "quantised": torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
        "sparse": torch.eye(3).to_sparse(),
        "meta": torch.ones(2, device="meta"),
    }


def save_scripted(module, path):
    """Save without the debugging information, which holds the paths of this machine."""
    buffer = io.BytesIO()
    torch.jit.save(module, buffer)
    with zipfile.ZipFile(buffer) as archive, zipfile.ZipFile(path, "w") as copy:
        for info in archive.infolist():
            if not info.filename.endswith(".debug_pkl"):
                copy.writestr(info, archive.read(info))


def as_numpy(tensor):
    tensor = tensor.detach()
    return (tensor.float() if tensor.is_floating_point() else tensor).numpy()


def main():
    """Write the files."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    warnings.simplefilter("ignore")
    expected = {}

    def save(name, content, tensors, **options):
        torch.save(content, FOLDER / name, **options)
        expected.update({f"{name}/{key}": as_numpy(tensor) for key, tensor in tensors.items()})

    save("plain.pth", plain(), plain())
    save("legacy.pth", plain(), plain(), **LEGACY)
    save("training.pth", training(), training()["model"])
    save("training_legacy.pth", training(), training()["model"], **LEGACY)
    save("several.pth", several(), several()["teacher"])
    save("unreadable.pth", unreadable(), {"weight": unreadable()["weight"]})
    save("module.pth", network(), {})
    scripted = torch.jit.script(Tower().half())
    save_scripted(scripted, FOLDER / "scripted.pt")
    expected.update({f"scripted.pt/{key}": as_numpy(t) for key, t in scripted.state_dict().items()})
    np.savez_compressed(FOLDER / "expected.npz", **expected)


if __name__ == "__main__":
    main()

"""What the PyTorch libraries do alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import safetensors.torch
import torch

from . import CLASSES, Job, images, labels

Logits = Callable[[torch.nn.Module, torch.Tensor], torch.Tensor]


def parameters(model: torch.nn.Module) -> int:
    """Number of parameters."""
    return sum(p.numel() for p in model.parameters())


def inference(model: torch.nn.Module, cell: dict[str, Any], logits: Logits) -> Job:
    """Logits of a batch in inference mode, eager and by `torch.compile`."""
    model.eval()
    x = torch.from_numpy(images(cell, channels_first=True))
    compiled = torch.compile(model)

    def call(module):
        with torch.inference_mode():
            return logits(module, x).numpy()

    calls = {"eager": lambda: call(model), "compile": lambda: call(compiled)}
    return Job(parameters(model), calls, (cell["batch"], CLASSES))


def training(model: torch.nn.Module, cell: dict[str, Any], logits: Logits) -> Job:
    """One step of AdamW on the cross-entropy, eager."""
    model.train()
    x, y = torch.from_numpy(images(cell, channels_first=True)), torch.from_numpy(labels(cell))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.cross_entropy(logits(model, x), y)
        loss.backward()
        optimizer.step()
        return loss.detach().numpy()

    return Job(parameters(model), {"eager": step}, ())


def features(
    model: torch.nn.Module, cell: dict[str, Any], read: Callable[[list[str]], torch.Tensor], logits: Logits
) -> Job:
    """Files become tensors, batches of tensors become features."""
    model.eval()

    def run():
        with torch.inference_mode():
            return torch.cat([logits(model, x) for x in read(cell["files"]).split(cell["batch"])]).numpy()

    return Job(parameters(model), {"read+eager": run}, (cell["images"], cell["architecture"]["hidden"]))


def save(model: torch.nn.Module, path: str) -> None:
    """Write the weights as safetensors."""
    safetensors.torch.save_model(model, path)


def startup(build: Callable, cell: dict[str, Any], logits: Logits) -> list:
    """Build, load a file of weights, predict for the first time."""
    held = []

    def predict():
        with torch.inference_mode():
            return logits(held[0].eval(), torch.from_numpy(images(cell, channels_first=True))).numpy()

    return [
        ("build", lambda: held.append(build(cell))),
        ("load", lambda: safetensors.torch.load_model(held[0], cell["weights"])),
        ("predict", predict),
    ]

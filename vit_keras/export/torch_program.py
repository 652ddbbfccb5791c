"""A program of `torch.export` (`.pt2`): runs in PyTorch, Python or C++, without Keras and this package.

The file takes uint8 images in the size of the model: it normalizes but does not resize them. It is a zip archive that
also has its metadata, `vit_keras.json`.
"""

from __future__ import annotations

import json
import os

from .plan import Plan


def write(plan: Plan, path: str | os.PathLike[str]) -> list[str]:
    """Write a `.pt2` file; PyTorch must be the backend of Keras."""
    import torch

    (shape, dtype), prepare = plan.input_of(resize=False), plan.prepare(resize=False)

    # The model is not part of the program: Keras reads its variables elsewhere than where PyTorch registers them, and
    # each would be in the file twice.
    class Program(torch.nn.Module):
        def forward(self, images):
            return plan.outputs(prepare(images))

    example = torch.zeros((2, *plan.fixed_size, shape[3]), dtype=getattr(torch, dtype))
    batch = torch.export.Dim("batch", min=1, max=1 << 16)
    with torch.no_grad():
        try:
            program = torch.export.export(Program().eval(), (example,), dynamic_shapes={"images": {0: batch}})
        except Exception as error:  # torch's compiler has dozens of its own
            reason = " ".join(str(error).split())[:1000]
            raise ValueError(f"torch.export cannot follow the model {plan.model.name!r}: {reason}") from error
    torch.export.save(program, os.fspath(path), extra_files={"vit_keras.json": json.dumps(plan.metadata_json())})
    return []

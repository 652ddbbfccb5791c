"""The `Trainer` of transformers with the defaults of its `TrainingArguments`, but for the number of steps."""

from __future__ import annotations

import copy
import tempfile
import time
from typing import Any

import torch
import transformers

from . import common
from ._torch import inputs, outputs
from .common import Processor


def learn(request: dict[str, Any]) -> dict[str, Any]:
    """Train as a contender does, and return its score, its steps and its processor time."""
    torch.manual_seed(request["seed"])
    data = common.read(request)
    kinds = {"single": "single_label_classification", "multi": "multi_label_classification"}
    model = transformers.ViTForImageClassification.from_pretrained(
        request["transformers"],
        num_labels=data.outputs,
        problem_type=kinds.get(data.kind, "regression"),
        ignore_mismatched_sizes=True,
        attn_implementation="sdpa",
    )

    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return len(data.pixels)

        def __getitem__(self, number):
            label = torch.tensor(data.labels[number])
            pixels = inputs(data.pixels[number : number + 1])[0]
            return {"pixel_values": pixels, "labels": label.long() if data.kind == "single" else label}

    class Watch(transformers.TrainerCallback):
        def __init__(self):
            self.times: list[float] = []

        def on_step_end(self, *args, **kwargs):
            self.times.append(time.process_time())

    def train(model, steps, *callbacks):
        with tempfile.TemporaryDirectory() as folder:
            arguments = transformers.TrainingArguments(
                folder, max_steps=steps, seed=request["seed"], use_cpu=True, save_strategy="no", report_to="none",
                disable_tqdm=True, dataloader_pin_memory=False,
            )  # fmt: skip
            trainer = transformers.Trainer(model, arguments, train_dataset=Rows(), callbacks=[*callbacks])
            with Processor() as processor:
                trainer.train()
        return processor.seconds

    budget, watch = request["budget"], Watch()
    if "seconds" in budget:
        train(copy.deepcopy(model), 1 + common.TIMED, watch)
        each = (watch.times[-1] - watch.times[0]) / common.TIMED
        budget = {"steps": max(1, int(budget["seconds"] / each))}
    seconds = train(model, int(budget["steps"]))
    score = data.score(outputs(model, data.test_pixels))
    return {"score": score, "steps": budget["steps"], "processor": seconds}

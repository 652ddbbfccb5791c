"""timm's fine-tuning settings, and scikit-learn on timm's features."""

from __future__ import annotations

import copy
from typing import Any

import torch

from benchmarks.contenders import _torchvision

from . import common
from ._torch import inputs
from ._torch import outputs as outputs_of
from .common import BATCH, Data, Processor

_torchvision.stand_in()


def learn(request: dict[str, Any]) -> dict[str, Any]:
    """Train as a contender does, and return its score, its steps and its processor time."""
    torch.manual_seed(request["seed"])
    data = common.read(request)
    return _timm(data, request) if request["style"] == "adamw" else _logistic(data, request)


def _timm_model(data: Data, request: dict[str, Any], outputs: int) -> torch.nn.Module:
    import timm

    overlay = {"file": request["weights"], "num_classes": 1000, "custom_load": request["weights"].endswith(".npz")}
    size = data.pixels.shape[1]
    name = "vit_tiny_patch16_224.augreg_in21k_ft_in1k"
    return timm.create_model(name, pretrained=True, pretrained_cfg_overlay=overlay, img_size=size, num_classes=outputs)


def _timm(data: Data, request: dict[str, Any]) -> dict[str, Any]:
    """AdamW at 5e-4, layer-wise decay 0.75, weight decay 0.05, cosine after a tenth of warm-up, smoothing 0.1."""
    from timm.loss import LabelSmoothingCrossEntropy
    from timm.optim import create_optimizer_v2
    from timm.scheduler import CosineLRScheduler

    losses = {"single": LabelSmoothingCrossEntropy(0.1), "multi": torch.nn.BCEWithLogitsLoss()}
    loss = losses.get(data.kind, torch.nn.MSELoss())

    def prepare(model):
        optimizer = create_optimizer_v2(model, opt="adamw", lr=5e-4, weight_decay=0.05, layer_decay=0.75)
        chosen = common.order(len(data.pixels), BATCH, request["seed"])
        model.train()

        def step():
            numbers = next(chosen)
            optimizer.zero_grad()
            labels = torch.from_numpy(data.labels[numbers])
            loss(model(inputs(data.pixels[numbers])), labels.long() if data.kind == "single" else labels).backward()
            optimizer.step()

        return optimizer, step

    model = _timm_model(data, request, data.outputs)
    steps = common.steps_within(request["budget"], prepare(copy.deepcopy(model))[1])
    optimizer, step = prepare(model)
    warmup = {"warmup_t": steps // 10, "warmup_lr_init": 1e-6, "warmup_prefix": True}
    schedule = CosineLRScheduler(optimizer, t_initial=max(1, steps - steps // 10), t_in_epochs=False, **warmup)
    with Processor() as processor:
        for number in range(steps):
            schedule.step_update(number)
            step()
    score = data.score(outputs_of(model, data.test_pixels))
    return {"score": score, "steps": steps, "processor": processor.seconds}


def _logistic(data: Data, request: dict[str, Any]) -> dict[str, Any]:
    """Logistic regression of scikit-learn on standardized features, as it comes or with its C by cross-validation."""
    from sklearn.linear_model import LogisticRegression, LogisticRegressionCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if data.kind != "single":
        return {"skipped": "logistic regression is for one class of several"}
    model = _timm_model(data, request, 0)
    test = outputs_of(model, data.test_pixels)
    with Processor() as processor:
        chosen = LogisticRegressionCV if "cross-validated" in request["style"] else LogisticRegression
        classifier = make_pipeline(StandardScaler(), chosen(max_iter=1000))
        classifier.fit(outputs_of(model, data.pixels), data.labels)
    return {"score": data.score(classifier.predict_proba(test)), "steps": 0, "processor": processor.seconds}

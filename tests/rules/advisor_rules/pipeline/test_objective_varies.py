"""The rule `objective-varies`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from studies import make_study, verdict

from advisor.model.change import Advise
from advisor.model.spec import Parameter

RULE = "objective-varies"
SPACE = {"lr": Parameter(low=1e-4, high=1e-1, scale="log"), "beta": Parameter(low=0.1, high=4.0, scale="log")}


def parts(seed: int = 0, trials: int = 12, points: int = 10) -> tuple[list[dict[str, float]], list[Any], list[Any]]:
    rng = np.random.default_rng(seed)
    params = [{n: float(p.draw(u)) for (n, p), u in zip(SPACE.items(), rng.random(2), strict=True)} for _ in range(trials)]
    fall = np.exp(-np.arange(points) / 3)
    recon = [20 + rng.normal() + 10 * fall + rng.normal(0, 0.1, points) for _ in params]
    kl = [6 / (1 + p["beta"]) + 0.5 * rng.random() - fall + rng.normal(0, 0.05, points) for p in params]
    return params, recon, kl


def autoencoder(objective: str = "val/loss", seed: int = 0, digits: int | None = None, **more: Any) -> Any:
    """The beta of a variational autoencoder is searched, and the validation loss contains it."""
    params, recon, kl = parts(seed)
    total = [r + p["beta"] * k for p, r, k in zip(params, recon, kl, strict=True)]
    metrics = {"val/loss": total, "val/recon": recon, "val/kl": kl}
    if digits is not None:
        metrics = {n: [v.round(digits) for v in curves] for n, curves in metrics.items()}
    return make_study(params, metrics | more, objective=objective, direction="minimize", space=SPACE)


def example() -> Any:
    return autoencoder()


def test_fires_where_a_searched_weight_is_part_of_the_objective() -> None:
    (finding,) = verdict(RULE, example()).findings
    assert finding.severity == "critical"
    assert finding.goal == "pipeline"
    assert "val/loss is a weighted sum of val/kl and val/recon, and its weights depend on beta" in finding.message
    (advice,) = finding.changes
    assert isinstance(advice, Advise)
    assert advice.new_scores


def test_other_metrics_and_rounded_values_do_not_hide_the_sum() -> None:
    rng = np.random.default_rng(1)
    other = {"val/accuracy": [rng.random(10) for _ in range(12)], "train/kl": [rng.random(10) for _ in range(12)]}
    (finding,) = verdict(RULE, autoencoder(digits=3, **other)).findings
    assert "weighted sum of val/kl and val/recon," in finding.message


def test_a_weight_between_two_tasks_counts_as_its_difference_to_one() -> None:
    params, first, second = parts()
    weights = np.random.default_rng(2).random(len(params))
    params = [p | {"weight": float(w)} for p, w in zip(params, weights, strict=True)]
    total = [w * a + (1 - w) * b for w, a, b in zip(weights, first, second, strict=True)]
    study = make_study(params, {"val_loss": total, "val_loss_a": first, "val_loss_b": second}, objective="val_loss")
    (finding,) = verdict(RULE, study).findings
    assert "depend on weight," in finding.message


@pytest.mark.parametrize(("trials", "status"), [(2, "quiet"), (3, "fired")])
def test_two_settings_do_not_show_which_hyperparameter_is_the_weight(trials: int, status: str) -> None:
    params, recon, kl = parts(trials=trials, points=100)
    total = [r + p["beta"] * k for p, r, k in zip(params, recon, kl, strict=True)]
    params = [{"a_rate": p["lr"], "beta": p["beta"]} for p in params]
    metrics = {"val/loss": total, "val/recon": recon, "val/kl": kl}
    made = verdict(RULE, make_study(params, metrics, objective="val/loss", direction="minimize"))
    assert made.status == status
    assert all("depend on beta," in f.message for f in made.findings)


def test_a_large_study_is_judged_by_a_part_of_its_evaluations() -> None:
    params, recon, kl = parts(trials=600, points=60)
    total = [r + p["beta"] * k for p, r, k in zip(params, recon, kl, strict=True)]
    study = make_study(params, {"val/loss": total, "val/recon": recon, "val/kl": kl}, objective="val/loss", space=SPACE)
    (finding,) = verdict(RULE, study).findings
    assert "weights depend on beta," in finding.message
    assert str(finding.evidence[0].rows[0][1]) == "18,000"  # of every second trial


@pytest.mark.parametrize("objective", ["val/recon", "val/kl"])
def test_quiet_for_a_part_of_the_sum(objective: str) -> None:
    """The reconstruction is the loss minus beta times the divergence, but it does not depend on beta."""
    assert verdict(RULE, autoencoder(objective)).status == "quiet"


def test_quiet_where_the_weights_are_fixed() -> None:
    params, recon, kl = parts()
    total = [r + 2 * k for r, k in zip(recon, kl, strict=True)]
    study = make_study(params, {"val/loss": total, "val/recon": recon, "val/kl": kl}, objective="val/loss", space=SPACE)
    assert verdict(RULE, study).status == "quiet"


@pytest.mark.parametrize(
    ("name", "metric", "kind", "status"),
    [
        ("focal_gamma", "val_loss", "supervised", "fired"),
        ("focal_gamma", "val_accuracy", "supervised", "quiet"),
        ("gamma", "val_loss", "supervised", "quiet"),
        ("temperature", "val_loss", "self-supervised", "fired"),
        ("temperature", "val_loss", "language-model", "quiet"),
        ("temperature", "knn_accuracy", "self-supervised", "quiet"),
    ],
)
def test_some_names_are_part_of_a_loss_by_definition(name: str, metric: str, kind: Any, status: str) -> None:
    rng = np.random.default_rng(0)
    params = [{name: float(v), "lr": float(r)} for v, r in rng.random((10, 2))]
    direction = "minimize" if metric.endswith("loss") else "maximize"
    study = make_study(params, {metric: list(rng.random(10))}, objective=metric, direction=direction)
    assert verdict(RULE, replace(study, kind=kind)).status == status


def test_keeps_its_promise_on_metrics_that_are_no_sum() -> None:
    def fires(seed: int) -> bool:
        rng = np.random.default_rng(seed)
        params, recon, kl = parts(seed, trials=int(rng.integers(4, 30)))
        loss = [0.3 * r + rng.normal(0, 0.02, len(r)) for r in recon]
        metrics = {"val/loss": loss, "val/recon": recon, "val/kl": kl, "val/accuracy": [1 / v for v in recon]}
        return bool(verdict(RULE, make_study(params, metrics, objective="val/loss", space=SPACE)).findings)

    assert not any(fires(seed) for seed in range(100))

"""The rule `residual-norm`."""

import numpy as np
import pytest
from promise import scaled, studies
from studies import make_study, verdict

RNG = np.random.default_rng(23)
N = 400
T = np.arange(N)


def losses(rise=False, noise=0.02):
    """A loss that falls; or first blows up for some thirty steps."""
    curve = 0.5 + 2 * np.exp(-T / 80) + noise * RNG.normal(size=N)
    return curve + (4 * np.exp(-(((T - 15) / 10.0) ** 2)) if rise else 0)


def study_of(curves, order="post-norm", layers='{"LayerNorm": 12}', lrs=None, tags=None):
    count = len(curves)
    noted = {"schema": "1", "model": "Transformer", "norm_layers": layers} | ({"norm_order": order} if order else {})
    return make_study(
        [{"lr": lr} for lr in lrs or [0.1 * (i + 1) for i in range(count)]],
        {"val/loss": [[2.0 + 0.1 * i] for i in range(count)], "train/loss": curves},
        steps={"train/loss": [T] * count, "val/loss": [[N]] * count},
        tags=tags or [noted] * count,
    )


def example():
    return study_of([losses(), losses(rise=True)])


FAULTS = {
    "post-norm": ("post-norm", '{"LayerNorm": 12}', "after its residual additions"),
    "none": ("none", "{}", "without normalisation"),
    "neither": ("no-residuals", "{}", "neither residual connections"),
}


@pytest.mark.parametrize(("order", "layers", "fault"), FAULTS.values(), ids=FAULTS.keys())
def test_instability_of_such_a_model_fires(order, layers, fault):
    (finding,) = verdict("residual-norm", study_of([losses(), losses(rise=True)], order, layers)).findings
    assert fault in finding.message
    assert (finding.subject, finding.trials) == ("Transformer", ("run1",))
    assert 0.7 < finding.confidence <= 0.8
    (change,) = finding.changes
    assert change.kind == "advise"
    assert "x + f(Norm(x))" in change.text


QUIET = {
    "stable": study_of([losses(), losses()]),
    "pre-norm": study_of([losses(), losses(rise=True)], "pre-norm"),
    "mixed": study_of([losses(rise=True)], "mixed"),
    "normalised without residuals": study_of([losses(rise=True)], "no-residuals", '{"BatchNorm2d": 3}'),
    "unstable far above the best rate": study_of([losses(), losses(rise=True)], lrs=[0.01, 1.0]),
    "stable, and nobody knows the model": study_of([losses()], None),
}


@pytest.mark.parametrize("study", QUIET.values(), ids=QUIET.keys())
def test_stays_quiet(study):
    assert verdict("residual-norm", study).status == "quiet"


MISSING = {
    "no losses": (make_study([{"lr": 0.1}], {"val/loss": [[2.0, 1.0]]}), "training loss at every step"),
    "unknown model": (study_of([losses(rise=True)], None), "where its model normalises"),
}


@pytest.mark.parametrize(("study", "wanted"), MISSING.values(), ids=MISSING.keys())
def test_says_what_to_log(study, wanted):
    result = verdict("residual-norm", study)
    assert result.status == "not-assessed"
    assert wanted in result.reason


@pytest.mark.parametrize("trials", [1, 4])
def test_it_keeps_its_promise(trials):
    """Stable trainings of a post-norm model."""
    fired = sum(
        verdict("residual-norm", study_of([losses(noise=0.1) for _ in range(trials)], lrs=[0.1] * trials)).status == "fired"
        for _ in studies(60)
    )
    assert fired <= scaled(6, of=60)

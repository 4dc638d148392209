"""The rule `loss-scale`."""

import numpy as np
import pytest
from promise import studies
from studies import make_study, verdict

from advisor.planning import plan

N = 400


def scaled(skips, start=2.0**16, every=2000):
    """Skipped steps and loss scale of each completed step; skips: {completed step: skipped steps before it}."""
    scale, good, scales = start, 0, []
    for step in range(N):
        if step in skips:
            scale, good = scale * 0.5 ** skips[step], 0
        scales.append(scale)
        good += 1
        if good == every:
            scale, good = 2 * scale, 0
    return [float(skips.get(step, 0)) for step in range(N)], scales


def study_of(trials, norms=None, losses=None, facts=None, steps=None):
    pairs = [scaled(*t) if isinstance(t, tuple) else scaled(t) for t in trials]
    count = len(pairs)
    steps = np.arange(N) if steps is None else steps
    curves = {
        "val/loss": [[2.0, 1.0]] * count,
        "train/loss": losses or [np.exp(-np.arange(N) / 100)] * count,
        "train/skipped_steps": [skips for skips, _ in pairs],
        "train/loss_scale": [scales for _, scales in pairs],
    }
    if norms is not None:
        curves["train/grad_norm"] = [norms] * count
    at = {name: [steps] * count for name in curves if name != "val/loss"} | {"val/loss": [[N // 2, N - 1]] * count}
    return make_study(
        [{"lr": 0.01 * (i + 1)} for i in range(count)],
        curves,
        steps=at,
        tags=[facts or {}] * count,
        status=["complete"] * count,
    )


NORMS = 1 + 0.1 * np.random.default_rng(3).random(N)
FALLING = dict.fromkeys(range(10, N, 20), 1)  # a bad batch every 20 steps
SEARCH = {0: 2, 5: 1, 300: 1}  # the scaler finds its scale, and the gradients grow a little


def example():
    return study_of([FALLING, SEARCH, FALLING], NORMS)


def test_fires_with_its_advice():
    study = example()
    result = verdict("loss-scale", study)
    (finding,) = result.findings
    assert finding.trials == ("run0", "run2")
    assert "2 of 3 trials" in finding.message
    assert "skipped 20 of 420 steps" in finding.message
    assert (finding.severity, finding.confidence) == ("warning", 0.9)
    assert all(mark.lasting for evidence in finding.evidence for mark in getattr(evidence, "marks", ()))
    (spec,) = plan(study, [result]).specs
    assert "bfloat16" in " ".join(spec.notes)


def test_skips_after_the_last_completed_step_count():
    study = study_of([SEARCH], NORMS, facts={"skipped_steps": "300"})
    (finding,) = verdict("loss-scale", study).findings
    assert "skipped 300 of 700 steps" in finding.message


def test_without_gradient_norms_a_scale_below_one_fires():
    assert verdict("loss-scale", study_of([(FALLING, 2.0**30)])).status == "quiet"
    assert verdict("loss-scale", study_of([FALLING])).status == "fired"


QUIET = {
    "the scaler finds its scale": study_of([SEARCH], NORMS),
    "a start far too high": study_of([({0: 30}, 2.0**40)], NORMS),
    "an overflow after each doubling": study_of([(dict.fromkeys(range(50, N, 50), 1), 2.0**15, 50)], NORMS),
    "a summed loss": study_of([({0: 10}, 2.0**16)], 1000 * NORMS),
    "gradients that grow": study_of([dict.fromkeys(range(210, N, 25), 1)], NORMS * 2.0 ** (np.arange(N) / 25)),
    "single bad batches": study_of([({250: 1, 300: 1}, 2.0**6)], NORMS),
    "many bad batches in the first half only": study_of([dict.fromkeys(range(10, 150, 5), 1)], NORMS),
    "a low start": study_of([({}, 1.0)], NORMS),
}


@pytest.mark.parametrize("study", QUIET.values(), ids=QUIET.keys())
def test_stays_quiet(study):
    assert verdict("loss-scale", study).status == "quiet"


EXPLODED = study_of([FALLING], NORMS, losses=[np.exp(np.arange(N) / 100)])
MISSING = {
    "no scaler": (make_study([{"lr": 0.1}], {"val/loss": [[2.0, 1.0]]}), "train/loss_scale"),
    "a training that exploded": (EXPLODED, "ended above its start"),
}


@pytest.mark.parametrize(("study", "reason"), MISSING.values(), ids=MISSING.keys())
def test_says_what_it_lacks(study, reason):
    result = verdict("loss-scale", study)
    assert result.status == "not-assessed"
    assert reason in result.reason


def test_it_keeps_its_promise():
    """Simulated scalers skip a step exactly if the scaled gradient, with its extremes, leaves the range; they never fire."""
    fired = 0
    for seed in studies(150):
        rng = np.random.default_rng(seed)
        trend = rng.uniform(-2, 4) * np.linspace(0, 1, 2 * N)
        norms = np.exp(rng.uniform(-3, 8) + trend + rng.uniform(0.1, 0.5) * rng.standard_t(5, size=2 * N))
        scale, good, every, rows, skipped = 2.0 ** rng.integers(8, 25), 0, int(rng.choice([20, 50, 2000])), [], 0
        for norm in norms:
            if scale * norm * rng.uniform(0.01, 1) > 65504:
                scale, good, skipped = scale / 2, 0, skipped + 1
                continue
            rows.append((float(skipped), scale, norm))
            skipped, good = 0, good + 1
            if good == every:
                scale, good = 2 * scale, 0
        skips, scales, kept = (np.array(column) for column in zip(*rows, strict=True))
        at = np.arange(len(rows))
        curves = {"train/skipped_steps": [skips], "train/loss_scale": [scales], "train/grad_norm": [kept]}
        study = make_study(
            [{"lr": 0.1}],
            curves | {"val/loss": [[2.0, 1.0]]},
            steps={name: [at] for name in curves} | {"val/loss": [[1, len(rows)]]},
        )
        fired += verdict("loss-scale", study).status == "fired"
    assert fired == 0

"""The rule `clip-insufficient`."""

import numpy as np
import pytest
from promise import scaled, studies
from studies import make_study, verdict

from advisor.planning import plan

RNG = np.random.default_rng(17)
N = 400
T = np.arange(N)


def losses(jump=None, noise=0.02):
    curve = 0.5 + 2 * np.exp(-T / 80) + noise * RNG.normal(size=N)
    if jump:
        curve[jump:] += 1.5 * np.exp(-(T[jump:] - jump) / 100)
    return curve


def norms(spikes=(), size=20.0):
    values = np.exp(0.3 * RNG.normal(size=N))
    values[list(spikes)] *= size
    return values


def study_of(curves, *, limit=5.0, grads=None, lrs=None, tags=None):
    count = len(curves)
    lrs = lrs or [0.1] * count
    metrics = {"val/loss": [[2.0 + 0.1 * i] for i in range(count)], "train/loss": curves}
    if grads is not None:
        metrics["train/grad_norm"] = grads
    steps = {name: [T] * count for name in metrics} | {"val/loss": [[N]] * count}
    noted = [{"schema": "1"} | ({"grad_clip_norm": str(limit)} if limit else {}) for _ in range(count)]
    return make_study([{"lr": lr, "i": i} for i, lr in enumerate(lrs)], metrics, steps=steps, tags=tags or noted)


def example():
    return study_of([losses(200)], grads=[norms([200])], limit=5.0)


def test_a_jump_in_spite_of_clipping_asks_for_a_smaller_threshold():
    study = example()
    result = verdict("clip-insufficient", study)
    (finding,) = result.findings
    assert finding.confidence > 0.9
    sweep, spec = plan(study, [result]).specs  # a single setting: first sweep the rate, then search the threshold
    assert "grad_clip_norm" not in sweep.parameters
    clip = spec.parameters["grad_clip_norm"]
    assert clip.low < 1.5 < clip.high < 5


def test_outliers_that_pass_below_the_threshold_show_it_too():
    study = study_of([losses()], grads=[norms([150, 200, 300])], limit=200.0)
    result = verdict("clip-insufficient", study)
    assert "times its running median" in result.findings[0].message
    _, spec = plan(study, [result]).specs
    assert spec.parameters["grad_clip_norm"].high < 200


def test_under_extreme_clipping_a_smaller_threshold_is_no_remedy():
    (finding,) = verdict("clip-insufficient", study_of([losses(200)], grads=[norms([200])], limit=0.3)).findings
    assert finding.changes[0].kind == "advise"


def test_without_norms_the_threshold_is_cut_to_a_third():
    (finding,) = verdict("clip-insufficient", study_of([losses(200)], limit=3.0)).findings
    assert "Start with 1." in finding.action


def test_divergence_counts():
    curve = losses()
    curve[250:] = np.nan
    study = make_study(
        [{"lr": 0.1, "clip": 3.0}],
        {"train/loss": [curve], "val/loss": [[2.0, 1.0]]},
        steps={"train/loss": [T], "val/loss": [[0, 200]]},
    )
    (finding,) = verdict("clip-insufficient", study).findings
    assert "not finite from step 250 on" in finding.message


QUIET = {
    "stable": study_of([losses()], grads=[norms()]),
    "outliers are clipped": study_of([losses()], grads=[norms([150, 200, 300])], limit=5.0),
    "no clipping": study_of([losses(200)], limit=None),
    "unstable far above the best rate": study_of([losses(), losses(200)], lrs=[0.01, 1.0]),
    "only a trial without clipping is unstable": study_of(
        [losses(), losses(200)], tags=[{"schema": "1", "grad_clip_norm": "5"}, {"schema": "1"}]
    ),
}


@pytest.mark.parametrize("study", QUIET.values(), ids=QUIET.keys())
def test_stays_quiet(study):
    assert verdict("clip-insufficient", study).status == "quiet"


def test_says_what_to_log():
    result = verdict("clip-insufficient", make_study([{"lr": 0.1}], {"val/loss": [[2.0, 1.0]]}))
    assert result.status == "not-assessed"
    assert "grad_clip_norm" in result.reason
    result = verdict("clip-insufficient", make_study([{"lr": 0.1, "clip": 1.0}], {"val/loss": [[2.0, 1.0]]}))
    assert result.status == "not-assessed"
    assert "losses or gradient norms" in result.reason


@pytest.mark.parametrize("trials", [1, 4])
def test_it_keeps_its_promise(trials):
    fired = sum(
        verdict(
            "clip-insufficient",
            study_of([losses(noise=0.1) for _ in range(trials)], grads=[norms() for _ in range(trials)], limit=9.0),
        ).status
        == "fired"
        for _ in studies(60)
    )
    assert fired <= scaled(6, of=60)

"""The rule `clip-aggressive`."""

import numpy as np
import pytest
from promise import scaled, studies
from studies import make_study, verdict

from advisor.model.spec import Parameter
from advisor.planning import plan

RNG = np.random.default_rng(4)
N = 400


def norms(middle=1.0, count=N):
    return middle * np.exp(0.4 * RNG.normal(size=count))


def study_of(curves, *, costs=None, name="train/grad_norm", tags=None, limits=None, **more):
    count = len(curves)
    params = [{"lr": 0.1 * (i + 1)} | ({"max_grad_norm": limits[i]} if limits else {}) for i in range(count)]
    objective = [[2.0, c] for c in costs or np.linspace(1, 1.2, count)]
    steps = {name: [np.arange(len(c)) for c in curves], "val/loss": [[0, N]] * count}
    return make_study(params, {"val/loss": objective, name: curves}, steps=steps, tags=tags, **more)


def example():
    return study_of([norms() for _ in range(4)], limits=[0.3] * 4)


def test_fires_and_raises_the_threshold_to_the_90th_percentile():
    study = example()
    result = verdict("clip-aggressive", study)
    (finding,) = result.findings
    assert finding.trials == ("run0", "run1", "run2", "run3")
    assert finding.confidence > 0.95
    tenth = np.quantile(np.concatenate([study.curve(t, "grad_norm").values[41:] for t in study.trials]), 0.9)
    (spec,) = plan(study, [result]).specs
    clip = spec.parameters["max_grad_norm"]
    assert "grad_clip_norm" not in spec.parameters
    assert clip.searched
    assert clip.low < tenth < clip.high
    assert clip.low > 0.3


@pytest.mark.parametrize(
    "optimizer", ["AdamW", "torch.optim.NAdam", "rmsprop", "adafactor", "paged_lion_8bit", "Muon", "lamb", "Adagrad"]
)
def test_optimizers_that_divide_by_the_gradients_need_no_change(optimizer):
    tags = [{"optimizer": optimizer}] * 4
    result = verdict("clip-aggressive", study_of([norms(5.0) for _ in range(4)], limits=[1.0] * 4, tags=tags))
    assert result.status == "not-assessed"
    assert "do not depend on the scale of the gradients" in result.reason


@pytest.mark.parametrize(
    ("optimizers", "status", "trials"),
    [
        (("sgd", "sgd", "sgd", "adamw"), "fired", ("run0", "run1", "run2")),
        (("sgd", "adamw", "adamw", "sgd"), "quiet", None),
        (("adamw", "sgd", "sgd", "sgd"), "quiet", None),
    ],
)
def test_each_trial_counts_by_its_own_optimizer(optimizers, status, trials):
    tags = [{"optimizer": name} for name in optimizers]
    result = verdict("clip-aggressive", study_of([norms() for _ in range(4)], limits=[0.3] * 4, tags=tags))
    assert result.status == status
    assert trials is None or result.findings[0].trials == trials


def test_what_the_hook_counted_comes_before_the_norms():
    tags = [{"grad_clip_norm": "0.5", "schema": "1"}]
    (finding,) = verdict("clip-aggressive", study_of([np.ones(N)], name="train/clipped", tags=tags)).findings
    assert "100 %" in finding.message
    assert "a norm of 0.5" in finding.message
    assert finding.changes[0].kind == "advise"
    assert "as train/grad_norm" in finding.changes[0].text


def test_a_window_counts_for_all_of_its_steps():
    shares = np.array([1.0] * 60 + [0.1] * 60)
    steps = np.concatenate([np.arange(60), 60 + 50 * np.arange(1, 61)])
    study = make_study(
        [{"lr": 0.1}],
        {"val/loss": [[2.0, 1.0]], "train/clipped": [shares]},
        steps={"train/clipped": [steps], "val/loss": [[0, 3060]]},
        tags=[{"grad_clip_norm": "1"}],
    )
    assert verdict("clip-aggressive", study).status == "quiet"


def test_norms_that_were_logged_after_clipping_show_it_too():
    curve = np.minimum(norms(), 0.3)
    (finding,) = verdict("clip-aggressive", study_of([curve], limits=[0.3])).findings
    assert finding.changes[0].kind == "advise"  # such norms do not say what to raise the threshold to


def test_a_range_that_the_study_searches_gets_the_new_one():
    space = {"lr": Parameter(low=0.01, high=1, scale="log"), "max_grad_norm": Parameter(low=0.01, high=0.5, scale="log")}
    study = study_of([norms() for _ in range(3)], limits=[0.1, 0.2, 0.3], space=space)
    result = verdict("clip-aggressive", study)
    ((change,),) = (f.changes for f in result.findings)
    assert (change.kind, change.plan) == ("plan", "clip")
    assert plan(study, [result]).specs[0].parameters["max_grad_norm"].high > 1.4


QUIET = {
    "few are clipped": study_of([norms() for _ in range(4)], limits=[2.0] * 4),
    "just half": study_of([norms() for _ in range(4)], limits=[1.0] * 4),
    "only trials far from the best": study_of(
        [norms() for _ in range(4)], limits=[3.0, 3.0, 0.1, 0.1], costs=[1.0, 1.01, 1.9, 1.95]
    ),
    "one good trial of many": study_of([norms() for _ in range(4)], limits=[0.1, 3.0, 3.0, 3.0]),
    "failed trials are no good ones": study_of(
        [norms(), np.full(N, np.nan), norms()],
        costs=[1.0, np.nan, np.nan],
        limits=[3.0, 0.01, 0.01],
        status=["complete", "diverged", "infeasible"],
    ),
    "the hook saw no clipping": study_of([norms()], tags=[{"schema": "1"}]),
}


@pytest.mark.parametrize("study", QUIET.values(), ids=QUIET.keys())
def test_stays_quiet(study):
    assert verdict("clip-aggressive", study).status == "quiet"


MISSING = {
    "no norms": make_study([{"clip": 1.0}], {"val/loss": [[2.0, 1.0]]}),
    "no threshold": study_of([norms()]),
    "clipped by value, share unknown": study_of([norms()], tags=[{"schema": "1", "grad_clip_value": "0.1"}]),
    "a threshold of another kind": make_study([{"clip_range": 0.2}], {"val/loss": [[2.0, 1.0]]}),
    "switched off": study_of([norms()], limits=[0.0]),
    "a switch": study_of([norms(3.0)] * 4, limits=[True] * 4),
    "too few": study_of([norms(count=10)], limits=[0.1]),
}


@pytest.mark.parametrize("study", MISSING.values(), ids=MISSING.keys())
def test_says_what_to_log(study):
    result = verdict("clip-aggressive", study)
    assert result.status == "not-assessed"
    assert "train/grad_norm" in result.reason
    assert "grad_clip_norm" in result.reason


@pytest.mark.parametrize(("trials", "points"), [(1, 30), (1, 500), (3, 100), (8, 60)])
def test_it_keeps_its_promise(trials, points):
    """Just half of the updates are clipped, and a part of them was logged."""
    fired = 0
    for _ in studies(150):
        flags = [(RNG.random(points) < 0.5).astype(float) for _ in range(trials)]
        study = study_of(flags, name="train/clipped", tags=[{"grad_clip_norm": "1"}] * trials)
        fired += verdict("clip-aggressive", study).status == "fired"
    assert fired <= scaled(12, of=150)


@pytest.mark.parametrize(("optimizer", "status"), [("adamw", "not-assessed"), ("sgd", "fired")])
def test_an_optimizer_among_the_hyperparameters_counts_as_one_in_the_facts(optimizer, status):
    study = make_study(
        [{"lr": 0.1, "optimizer": optimizer, "grad_clip": 0.3}],
        {"val/loss": [[2.0, 1.0]], "train/grad_norm": [norms()]},
        steps={"train/grad_norm": [np.arange(N)], "val/loss": [[0, N]]},
    )
    assert verdict("clip-aggressive", study).status == status

"""A study's trials in a Python loop: recorded with their status, resumable, shared with other launchers."""

import inspect
import json
import math
import re
import subprocess
import sys
import time
from dataclasses import replace

import mlflow
import pytest

import advisor
from advisor import contract, open_study, report_trial
from advisor.execution import Ledger
from advisor.execution.api import OpenStudy
from advisor.execution.engines import Exit
from advisor.execution.guarding import RunVerdict
from advisor.execution.queue import AdaptiveQueue, entries_as_observations
from advisor.model.errors import AdvisorError
from advisor.model.spec import Objective, Parameter, Sampler, StudySpec
from advisor.tracking.stores.location import parse_tracking_uri
from advisor.tracking.stores.reading import read_experiment

pytestmark = pytest.mark.xdist_group("tracking server")  # they share servers

SPEC = StudySpec(
    study="in a loop's body",
    objective=Objective(metric="val/loss", direction="minimize"),
    parameters={"lr": Parameter(low=0.001, high=1.0, scale="log"), "depth": Parameter(choices=(2, 4))},
    trials=6,
    max_train_steps=100,
    evaluate_every=10,
)


def runs():
    return {run.name: run for run in read_experiment(SPEC.study, tracking_uri="mlflow.db").runs}


def statuses():
    return {name: run.tags.get(contract.TAG_STATUS) for name, run in sorted(runs().items())}


@pytest.mark.filterwarnings("ignore:trial-:RuntimeWarning")
def test_trials_are_recorded_with_their_status_and_a_later_loop_resumes(project):
    study = open_study(SPEC)
    seen = []
    for trial in study.trials():
        seen.append(trial.number)
        assert trial.params["lr"] > 0
        assert trial.seed == trial.number
        with trial:
            if trial.number == 0:
                assert report_trial(trial, [0.5, 0.3, 0.4]).best == 0.3
            if trial.number == 1:
                raise RuntimeError("CUDA out of memory. Tried to allocate 2 GiB")
            if trial.number == 2:
                with mlflow.start_run():
                    assert mlflow.active_run().info.run_id == trial.run_id
                    mlflow.log_metric("val/loss", 0.2, step=7)
            if trial.number == 3:
                report_trial(trial, {10: 0.9, 20: math.nan})
        if trial.number == 4:
            break
    assert seen == [0, 1, 2, 3, 4]
    assert statuses() == {
        "trial-0": "complete",
        "trial-1": "infeasible",
        "trial-2": "complete",
        "trial-3": "diverged",
        "trial-4": None,
    }
    assert runs()["trial-1"].tags[contract.TAG_ERROR].startswith("out of memory: RuntimeError: CUDA out of memory")
    assert runs()["trial-0"].params["depth"] in ("2", "4")

    # Another iteration, also of a newly opened study, skips finished trials and begins the interrupted one again.
    for trial in open_study(SPEC).trials():
        seen.append(trial.number)
        report_trial(trial, 0.1, status="stopped")
    assert seen[5:] == [4, 5]
    assert statuses()["trial-4"] == "stopped"
    assert list(study.trials()) == []
    assert len(runs()) == 6


def test_a_trial_with_an_uncaught_exception_is_begun_again(project):
    study = open_study(SPEC)

    def loop():
        for _ in study.trials():
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        loop()
    assert next(iter(study.trials())).number == 0


def test_loops_share_a_study(project):
    one, other = open_study(SPEC).trials(), open_study(SPEC).trials()
    numbers = [next(one).number, next(other).number, next(one).number]
    assert numbers == [0, 1, 2]
    one.close()
    other.close()


def test_an_adaptive_study_follows_its_results(project):
    spec = SPEC.model_copy(update={"study": "exploit", "trials": 13, "sampler": Sampler(kind="adaptive", seed=1)})

    def run(name):
        drawn = []
        for trial in open_study(spec.model_copy(update={"study": name})).trials():
            drawn.append(trial.params)
            report_trial(trial, abs(math.log10(trial.params["lr"] / 0.05)) + 0.1 * (trial.params["depth"] == 2))
        return drawn

    drawn = run("exploit")
    assert run("exploit again") == drawn
    assert sum(abs(math.log10(p["lr"] / 0.05)) < 0.3 for p in drawn[10:]) >= 2

    # A child study starts from its parent's results.
    child = spec.model_copy(update={"study": "exploit further", "parent": "exploit", "trials": 2})
    first = next(iter(open_study(child).trials())).params
    assert abs(math.log10(first["lr"] / 0.05)) < 0.3
    assert first not in drawn


def test_an_adaptive_trial_that_is_begun_again_keeps_its_point(project):
    spec = SPEC.model_copy(update={"trials": 5, "sampler": Sampler(kind="adaptive", seed=1)})
    ledger, queue = Ledger(parse_tracking_uri("mlflow.db"), spec.study, spec), AdaptiveQueue(spec, 5, 0, [])

    def begin():
        (job,) = queue.next(ledger.entries)
        return ledger.begin([job])[0]

    drawn = [begin() for _ in range(4)]
    ledger.end(drawn[0][1], Exit(1, interrupted=True))
    assert begin()[0] == drawn[0][0]
    assert len({tuple(job.params.values()) for job, _ in drawn}) == 4


def test_an_interrupted_trial_of_the_parent_is_no_result(project):
    for trial in open_study(SPEC).trials():
        if trial.number == 2:
            trial.log({10: 0.1})
            break
        report_trial(trial, 0.5)
    client = mlflow.MlflowClient("sqlite:///mlflow.db")
    experiment = client.get_experiment_by_name(SPEC.study).experiment_id
    plain = client.create_run(experiment, tags={contract.TAG_STUDY: SPEC.study}).info.run_id  # a run without a launcher
    client.log_metric(plain, "val/loss", 0.3)
    client.set_terminated(plain)
    child = SPEC.model_copy(update={"study": "next", "parent": SPEC.study})
    found = Ledger(parse_tracking_uri("mlflow.db"), "next", child).preceding_trials()
    assert [entry.outcome.best for entry in found] == [0.5, 0.5, 0.3]


def test_values_may_be_arrays(project):
    import numpy as np

    values = [np.array([0.5, 0.25]), np.array(0.3), np.float32(0.5), (v for v in (0.7, 0.6)), {10: np.float64(0.4)}]
    best = []
    for trial, value in zip(open_study(SPEC).trials(), values, strict=False):
        with trial:
            best.append(report_trial(trial, value).best)
    assert best == pytest.approx([0.25, 0.3, 0.5, 0.6, 0.4])


def test_later_repeats_get_unused_seeds(project):
    spec = SPEC.model_copy(update={"trials": 4})
    for trial in open_study(spec).trials():
        report_trial(trial, 0.5)
    later = []
    for trial in open_study(spec.model_copy(update={"seeds": 3})).trials():
        later.append((trial.number, trial.seed))
        report_trial(trial, 0.5)
    seeds = {n: sorted([n, *(seed for number, seed in later if number == n)]) for n in range(4)}
    assert seeds == {0: [0, 1, 2], 1: [0, 1, 2], 2: [0, 1, 2], 3: [1, 2, 3]}
    assert len(runs()) == 12


def test_a_heartbeat_does_not_overwrite_an_outcome(project, monkeypatch):
    monkeypatch.setattr("advisor.execution.api.HEARTBEAT_INTERVAL_S", 0.05)
    spec = SPEC.model_copy(update={"trials": 2})
    study = open_study(spec)
    for trial in study.trials():
        report_trial(trial, 0.5)
        time.sleep(0.5)
    before = {name: run.id for name, run in runs().items()}
    assert list(study.trials()) == []
    assert {name: run.id for name, run in runs().items()} == before


def test_an_unknown_status_is_an_error(project):
    trial = next(open_study(SPEC).trials())
    with pytest.raises(AdvisorError, match="no status of a trial that has ended; use one of complete"):
        report_trial(trial, status="fine")


def test_a_result_is_kept_while_the_store_is_unreachable(project, proxy, monkeypatch):
    monkeypatch.setattr("advisor.execution.ledger.record.MAX_STORE_WAIT_S", 0.5)
    where = {"tracking_uri": f"http://127.0.0.1:{proxy.port}"}
    study = open_study(SPEC, **where)

    def loop():
        for trial in study.trials():
            with trial:
                assert trial.number == 0
                proxy.cut()
                trial.log({10: 0.4})  # is no reason to stop the training
                report_trial(trial, {20: 0.2, 30: 0.3})

    with pytest.raises(
        AdvisorError, match=r"the tracking store does not answer: .*; the result of trial-0 is saved in advisor-runs"
    ):
        loop()
    proxy.restored()
    assert [trial.number for trial in open_study(SPEC, **where).trials(2)] == [1]
    first = next(run for run in read_experiment(SPEC.study, **where).runs if run.name == "trial-0")
    assert first.tags[contract.TAG_STATUS] == "complete"
    curve = mlflow.MlflowClient(**where).get_metric_history(first.id, "val/loss")
    assert [(m.step, m.value) for m in curve] == [(10, 0.4), (20, 0.2), (30, 0.3)]
    assert not list(project.glob("advisor-runs/*/*"))


def test_an_adaptive_study_learns_from_all_rounds_before_it(project):
    near = {"lr": Parameter(low=0.01, high=0.1, scale="log"), "depth": Parameter(choices=(2, 4))}
    rounds = [
        SPEC.model_copy(update={"study": "first", "trials": 4}),
        SPEC.model_copy(update={"study": "second", "parent": "first", "round": 2, "trials": 1, "parameters": near}),
        SPEC.model_copy(update={"study": "other schedule", "parent": "second", "schedule": {"kind": "cosine"}, "trials": 1}),
        SPEC.model_copy(update={"study": "probe", "parent": "other schedule", "probe": "warmup", "trials": 1}),
    ]
    for number, spec in enumerate(rounds):
        for trial in open_study(spec, experiment="all" if number == 1 else None).trials():
            report_trial(trial, number + 0.1 * trial.number)
    last = SPEC.model_copy(update={"study": "last", "parent": "probe", "sampler": Sampler(kind="adaptive")})
    found = Ledger(parse_tracking_uri("mlflow.db"), "last", last).preceding_trials()
    assert [entry.outcome.best for entry in found] == pytest.approx([0.0, 0.1, 0.2, 0.3, 1.0])
    history = entries_as_observations(last.model_copy(update={"parameters": near}), found)
    assert len(history) == 5
    assert any(not 0.01 <= past.params["lr"] <= 0.1 for past in history)


def test_importing_the_package_loads_no_slow_library():
    code = "import sys, advisor; print([m for m in ('mlflow', 'optuna', 'ray', 'pydantic', 'numpy') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
    assert {"open_study", "report_trial"} <= set(advisor.__all__)


def train_guarded(trial, *, obeys=True):
    """Train until the trial's planned length; trials from 5 on are hopeless, and wait for the guard. Return the last step."""
    hopeless = trial.number >= 5
    with mlflow.start_run():
        for step in range(1, 13):
            mlflow.log_metric("val/loss", 3.0 if hopeless else 1 / step + 0.01 * trial.number, step=step)
            if hopeless and step == 8:
                until = time.monotonic() + 120
                while not trial.should_stop and time.monotonic() < until:
                    time.sleep(0.05)
            if trial.should_stop and obeys:
                return step
    return 12


def test_the_guard_asks_hopeless_trainings_to_stop_and_one_goes_on(project):
    spec = SPEC.model_copy(update={"max_train_steps": 12, "evaluate_every": 1, "trials": 7})
    study = open_study(spec, guard=True)
    study._guard._guarded = replace(study._guard._guarded, interval_s=0.2)
    steps = [train_guarded(trial, obeys=trial.number == 5) for trial in study.trials()]
    assert steps == [12] * 5 + [8, 12]
    assert list(statuses().values()) == ["complete"] * 5 + ["pruned", "complete"]
    assert study._guard._process is None
    stopped = json.loads(runs()["trial-5"].tags[contract.TAG_GUARD_STOP])
    assert (stopped["state"], stopped["step"]) == ("doomed", 8)
    assert stopped["reason"].startswith("trial-5 cannot become the best")
    assert contract.TAG_GUARD_STOP not in runs()["trial-6"].tags


def test_a_trial_ends_as_reported_even_after_a_verdict(project):
    for trial in open_study(SPEC).trials(3):
        assert trial.should_stop is False
        trial.judge(RunVerdict("another", "t", "doomed", 10, 100.0, stop=True, message="It is hopeless."))
        trial.judge(RunVerdict(trial.run_id, "t", "diverging", 10, 100.0, stop=False, message="It diverges."))
        assert trial.should_stop is False
        trial.judge(RunVerdict(trial.run_id, "t", "not_finite", 10, 100.0, stop=True, message="It is not finite."))
        assert trial.should_stop is True
        if trial.number == 0:
            report_trial(trial, {10: math.nan})
        if trial.number == 1:
            report_trial(trial, {10: 0.5}, status="stopped")
        if trial.number == 2:
            report_trial(trial, error="lost its data")
    assert list(statuses().values()) == ["diverged", "stopped", "infeasible"]
    assert [contract.TAG_GUARD_STOP in runs()[f"trial-{n}"].tags for n in range(3)] == [True, False, False]


@pytest.mark.parametrize("public", [open_study, OpenStudy.trials, report_trial])
def test_each_argument_is_described_in_a_line_of_its_own(public):
    entries = re.findall(r"^ +([a-z_, ]+): ", inspect.getdoc(public), re.MULTILINE)
    described = {name for entry in entries for name in entry.split(", ")}
    assert described == set(inspect.signature(public).parameters) - {"self"}

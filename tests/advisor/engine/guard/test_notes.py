"""Findings that one running trial shows by itself."""

from dataclasses import replace

import numpy as np
import pytest

from advisor.engine.guard.notes import running_trial_messages
from advisor.engine.registry import load_rules
from tests.studies import make_study


def study(waits):
    """Two complete trials, and one that runs since 400 steps. waits: seconds that its steps wait for data, of 0.1 a step."""
    rng = np.random.default_rng(0)
    lengths = (1000, 1000, 400)
    near = [0.1 * np.exp(rng.normal(0, 0.01, n)) for n in lengths]
    wait = [np.full(n, 0.001) for n in lengths[:2]] + [np.full(lengths[2], waits) * np.exp(rng.normal(0, 0.01, 400))]
    loss = [1 + np.exp(-np.arange(n) / 100) + rng.normal(0, 0.01, n) for n in lengths]
    made = make_study(
        [{"lr": 0.1}, {"lr": 0.2}, {"lr": 0.3}],
        {"val/loss": loss, "train/loss": loss, "train/step_time_s": near, "train/data_wait_s": wait},
        tags=[{"max_train_steps": "1000", "schema": "1"}] * 3,
        every=1,
    )
    return replace(made, trials=(*made.trials[:2], replace(made.trials[2], status="running")))


def test_a_running_trial_that_waits_for_its_data_says_so():
    made = study(waits=0.06)
    (note,) = running_trial_messages(made, made.trials[2], load_rules(settings={}))
    assert str(note).startswith("The steps of trial-2 wait for data 60 % of their time")


def test_a_trial_is_judged_alone_and_only_by_rules_that_can():
    made = study(waits=0.001)
    assert running_trial_messages(made, made.trials[2], load_rules(settings={})) == ()
    bound = study(waits=0.06)
    waits = [rule for rule in load_rules(settings={}) if rule.rule_id() == "input-bound"]
    assert len(running_trial_messages(bound, bound.trials[2], waits)) == 1
    assert running_trial_messages(bound, bound.trials[0], waits) == ()
    others = [rule for rule in load_rules(settings={}) if not rule.while_running]
    assert running_trial_messages(bound, bound.trials[2], others) == ()


def test_a_loss_that_rises_at_the_start_is_named_while_it_runs():
    made = study(waits=0.001)
    block = made.metrics["train/loss"]
    values = block.values.copy()
    values[block.offsets[2] + 20 : block.offsets[2] + 60] = 9.0
    made = replace(made, metrics={**made.metrics, "train/loss": replace(block, values=values)})
    (note,) = running_trial_messages(made, made.trials[2], load_rules(settings={}))
    assert "trial-2" in note


@pytest.mark.parametrize(
    ("evaluations", "fall", "rate", "notes"),
    [(60, 3.0, "constant", 1), (45, 3.0, "constant", 0), (60, 40.0, "constant", 0), (60, 3.0, "cosine", 0)],
)
def test_a_trial_that_has_long_been_flat_says_so_from_half_of_its_training_on(evaluations, fall, rate, notes):
    k = np.arange(1, evaluations + 1)
    curve = 0.1 + np.exp(-k / fall) + np.random.default_rng(0).normal(0, 1e-3, evaluations)
    tags = {"max_train_steps": "2000", "schedule": f'{{"kind": "{rate}"}}'}
    made = make_study([{"lr": 0.1}], {"val/loss": [curve]}, every=20, tags=[tags])
    made = replace(made, trials=(replace(made.trials[0], status="running"),))
    found = [str(note) for note in running_trial_messages(made, made.trials[0], load_rules(settings={}))]
    assert len(found) == notes
    assert all(note.startswith("trial-0 is flat from step ") and "of 1,200 on" in note for note in found)

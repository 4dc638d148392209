"""eval-batch: evaluations in smaller batches than training."""

import json

import numpy as np
import pytest
from promise import studies
from studies import make_study, verdict

RULE = "eval-batch"


def study(*facts, params=None):
    params = params or [{"lr": 0.1 / (i + 1)} for i in range(len(facts))]
    tags = [{k: str(v) for k, v in f.items()} for f in facts]
    return make_study(params, {"val/loss": [[1.0, 0.5]] * len(params)}, tags=tags)


def ranks(world):
    return json.dumps({"world_size": world, "parallel": "ddp", "backend": "gloo", "facts": {}})


def example():
    return study(*[{"batch_size": 64, "eval_batch_size": 8, "n_valid": 500}] * 6)


def test_smaller_than_in_training():
    (finding,) = verdict(RULE, example()).findings
    assert finding.severity == "note"
    (change,) = finding.changes
    assert "at least 64" in change.text


@pytest.mark.parametrize(("seconds", "rarely"), [(1.0, False), (5.0, True)])
def test_evaluations_that_take_long_are_to_be_made_less_often(seconds, rarely):
    """Ten evaluations after every 5 steps of one second each, in a training with Transformers."""
    steps = np.arange(1, 51)
    curves = {"val/loss": [np.linspace(2, 1, 10)], "train/step_time_s": [np.ones(50)], "train/data_wait_s": [np.zeros(50)]}
    slow = make_study(
        [{"lr": 0.1, "per_device_train_batch_size": 64}],
        curves,
        steps={"val/loss": [steps[4::5]], "train/step_time_s": [steps], "train/data_wait_s": [steps]},
        times={"val/loss": [(5 + seconds) * np.arange(1, 11)]},
        tags=[{"batch_size": "64", "eval_batch_size": "8", "n_valid": "500"}],
    )
    (finding,) = verdict(RULE, slow).findings
    assert "per device: --per-device-eval-batch-size 64." in str(finding.action)
    assert ("Evaluate less often, too." in str(finding.action)) == rarely
    assert ("Evaluations take 50 % of the training time." in finding.message) == rarely


def test_as_large_as_in_training():
    assert verdict(RULE, study({"batch_size": 64, "eval_batch_size": 64})).status == "quiet"


def test_devices_and_micro_batches_share_a_training_batch():
    shared = {"batch_size": 512, "micro_batches": 4, "ranks": ranks(8)}
    assert verdict(RULE, study({**shared, "eval_batch_size": 16})).status == "quiet"
    assert verdict(RULE, study({**shared, "eval_batch_size": 15})).status == "fired"


def test_a_batch_that_holds_the_whole_validation_set():
    assert verdict(RULE, study({"batch_size": 256, "eval_batch_size": 100, "n_valid": 100})).status == "quiet"
    assert verdict(RULE, study({"batch_size": 512, "eval_batch_size": 50, "n_valid": 100, "ranks": ranks(2)})).status == "quiet"


def test_hyperparameters_say_it_as_well():
    params = [{"train.batch_size": 32, "eval.batch_size": 8, "gradient_accumulation_steps": 4}]
    assert "8 examples per device; training uses batches of 32" in verdict(RULE, study({}, params=params)).findings[0].message
    params = [{"train.batch_size": 8, "eval.batch_size": 8}]
    assert verdict(RULE, study({}, params=params)).status == "quiet"


def test_only_the_trials_that_show_it():
    sizes = [16, 32, 64, 128]
    shown = study(*[{"batch_size": b, "eval_batch_size": 32, "n_valid": 1000} for b in sizes])
    (finding,) = verdict(RULE, shown).findings
    assert len(finding.trials) == 2
    assert "64 to 128" in finding.message


def test_it_cannot_tell_without_both_sizes():
    for facts in ({}, {"batch_size": 64}, {"eval_batch_size": 8}, {"batch_size": "x", "eval_batch_size": 8}):
        assert verdict(RULE, study(facts)).status == "not-assessed"


def test_it_keeps_its_promise():
    rng = np.random.default_rng(0)
    for _ in studies(200):
        trials = int(rng.integers(1, 12))
        world, micro = int(rng.integers(1, 9)), int(rng.integers(1, 5))
        at_once = 2 ** rng.integers(0, 9, trials)
        facts = [
            {
                "batch_size": int(b) * world * micro,
                "micro_batches": micro,
                "eval_batch_size": int(b) * int(rng.integers(1, 4)),
                "ranks": ranks(world),
            }
            for b in at_once
        ]
        assert verdict(RULE, study(*facts)).status == "quiet"

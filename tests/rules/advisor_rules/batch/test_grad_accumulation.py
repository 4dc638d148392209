"""The rule `grad-accumulation`."""

import pytest
from studies import lacking, make_study, verdict
from timed import GPU, timed

from advisor.planning import plan

GIB = 2.0**30


def study_of(count=4, *, parts=4, gib=None, params=None, facts=None, tags=None, **more):
    noted = {"schema": "1", "batch_size": "64", "micro_batches": str(parts)} | (facts or {})
    if gib is not None:
        noted |= GPU | {"device_memory_bytes": f"{80 * GIB:.0f}"}
    trial = {} if gib is None else {"memory": [gib * GIB / 2, gib * GIB]}
    params = params or [{"lr": 0.1 * (i + 1)} for i in range(count)]
    return timed(*[trial] * len(params), params=params, tags=tags or [noted] * len(params), **more)


def example():
    return study_of(gib=8)


def test_free_memory_makes_it_certain():
    (finding,) = verdict("grad-accumulation", example()).findings
    assert (finding.severity, finding.confidence) == ("warning", 0.95)


def test_if_only_a_part_fits_it_asks_for_fewer():
    (finding,) = verdict("grad-accumulation", study_of(gib=30)).findings
    assert "over 2 larger" in finding.action


def test_without_a_measured_memory_it_is_a_note():
    (finding,) = verdict("grad-accumulation", study_of()).findings
    assert (finding.severity, finding.confidence) == ("note", 0.6)
    assert "unless memory is too small" in finding.action


def test_hyperparameters_of_the_accumulation_are_changed():
    params = [{"gradient_accumulation_steps": 8, "per_device_train_batch_size": 4, "lr": 0.1 * i} for i in range(1, 4)]
    study = make_study(params, {"val/loss": [[2.0, 1.0]] * 3})
    result = verdict("grad-accumulation", study)
    (finding,) = result.findings
    assert "over 8 micro-batches of 4" in finding.message
    (spec,) = plan(study, [result]).specs
    assert spec.parameters["gradient_accumulation_steps"].value == 1
    assert spec.parameters["per_device_train_batch_size"].value == 32


def test_numbers_that_differ_between_trials_are_all_stated():
    """The number is searched, so no single batch size describes the study."""
    params = [{"gradient_accumulation_steps": n, "per_device_train_batch_size": 8} for n in (2, 4, 8)]
    (finding,) = verdict("grad-accumulation", make_study(params, {"val/loss": [[2.0, 1.0]] * 3})).findings
    assert "over 2 to 8 micro-batches of 8 examples in all 3 trials" in finding.message
    assert "Process the whole batch at once" in finding.action


QUIET = {
    "none": study_of(parts=1),
    "memory is used": study_of(gib=60),
    "only in a trial of four": study_of(
        tags=[{"schema": "1", "batch_size": "64", "micro_batches": p} for p in ("4", "1", "1", "1")]
    ),
    "a larger batch ran out of memory": study_of(
        3,
        tags=[{"schema": "1", "batch_size": "64", "micro_batches": "4"}] * 2
        + [{"schema": "1", "batch_size": "32", "error": "out of memory: 3 GiB"}],
        status=["complete", "complete", "infeasible"],
    ),
}


@pytest.mark.parametrize("study", QUIET.values(), ids=QUIET.keys())
def test_stays_quiet(study):
    assert verdict("grad-accumulation", study).status == "quiet"


def test_says_what_to_log():
    assert "micro_batches" in lacking("grad-accumulation", make_study([{"lr": 0.1}], {"val/loss": [[2.0, 1.0]]}))


def test_it_keeps_its_promise():
    """What fits at once according to the peak does fit: tensors take a part that does not grow, and one that does."""
    for peak in range(2, 80, 3):
        for fixed in (0.0, 0.3, 0.7):
            result = verdict("grad-accumulation", study_of(1, parts=8, gib=peak))
            if result.status == "fired":
                fewer = 1 if "whole" in result.findings[0].action else int(str(result.findings[0].action).split()[2])
                times = -(-8 // fewer)
                assert fixed * peak + (1 - fixed) * peak * times <= 80

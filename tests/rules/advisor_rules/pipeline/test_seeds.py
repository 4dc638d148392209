"""seeds: not known, the same in all trials, or wrong across ranks."""

import json

import numpy as np
import pytest
from promise import scaled, studies
from studies import make_study, verdict

RULE = "seeds"


def study(seeds, *, settings=None, tags=None, **kwargs):
    """Trials with these seeds (None: not noted), each a setting of its own unless `settings` numbers them."""
    tags = tags or [{} if s is None else {"seed": str(s)} for s in seeds]
    params = [{"lr": 0.1 / (i + 1), "width": 64} for i in (settings or range(len(tags)))]
    return make_study(params, {"val/loss": [[1.0, 0.5]] * len(tags)}, tags=tags, **kwargs)


def ranks(*, parallel="ddp", world=2, sampler="RandomSampler", **facts):
    noted = {n: {"by_rank": v} if isinstance(v, list) else {"same": v} for n, v in facts.items()}
    return {
        "seed": "1",
        "n_train": "1000",
        "loader": json.dumps({"sampler": sampler}),
        "ranks": json.dumps({"world_size": world, "parallel": parallel, "backend": "nccl", "facts": noted}),
    }


def example():
    return study([7] * 8)


def test_seeds_that_differ():
    assert verdict(RULE, study(range(8))).status == "quiet"


def test_seeds_that_nobody_noted():
    missing = verdict(RULE, study([None] * 4))
    assert (missing.status, missing.needs.lack) == ("not-assessed", "seeds")
    shown = study([1, 2, None])
    (finding,) = verdict(RULE, shown).findings
    assert (finding.severity, finding.trials) == ("note", ("run2",))
    assert finding.changes[0].apply(shown.spec).notes == (finding.changes[0].text,)
    assert verdict(RULE, study([*range(11), None])).status == "quiet"


def test_a_parameter_called_seed_will_do():
    params = [{"lr": 0.1 / (i + 1), "trainer.seed": i} for i in range(4)]
    assert verdict(RULE, make_study(params, {"val/loss": [[1.0, 0.5]] * 4})).status == "quiet"


def test_one_seed_for_all():
    (finding,) = verdict(RULE, example()).findings
    assert (finding.severity, len(finding.trials)) == ("note", 8)
    assert verdict(RULE, study([7, 7])).status == "quiet"


def test_one_seed_for_the_search_and_several_for_the_best_setting():
    assert verdict(RULE, study([42] * 20 + [43, 44], settings=[*range(20), 3, 3])).status == "quiet"


def test_repeats_with_one_seed_are_none():
    (finding,) = verdict(RULE, study([7] * 6, settings=[0, 0, 0, 1, 1, 1])).findings
    assert finding.severity == "warning"
    assert len(finding.trials) == 6
    assert "another seed" in finding.changes[0].text


@pytest.mark.parametrize(
    ("facts", "words", "confidence"),
    [
        ({"loader_seed": 0, "shard_examples": 1000}, "same examples", 0.9),
        ({"loader_seed": 0}, "same examples", 0.6),
        ({"loader_seed": [0, 1], "sampler": "DistributedSampler"}, "twice", 0.9),
        ({"seed": [0, 1], "parallel": "other"}, "same weights", 0.6),
        ({"seed": [0, 1], "parallel": "fsdp"}, "same weights", 0.6),
    ],
)
def test_seeds_of_ranks(facts, words, confidence):
    (finding,) = verdict(RULE, study((), tags=[ranks(**facts)])).findings
    assert words in finding.message
    assert finding.confidence == confidence


@pytest.mark.parametrize(
    "facts",
    [
        {"loader_seed": 7, "shard_examples": 500, "seed": [100, 101]},
        {"loader_seed": 7, "sampler": "DistributedSampler"},
        {"loader_seed": [7, 8], "shard_examples": 1000},
        {"seed": 3, "parallel": "fsdp"},
        {"seed": [3, None], "parallel": "other", "loader_seed": [0, None]},
    ],
)
def test_ranks_that_are_seeded_well(facts):
    assert verdict(RULE, study((), tags=[ranks(**facts)])).status == "quiet"


def test_it_cannot_tell_before_a_trial_has_ended():
    with_data = study([1, 1, 1, 1], status=["infeasible", *["complete"] * 3])
    assert verdict(RULE, with_data).status == "fired"
    # A study all of whose trials are still running is none; of one whose trials logged nothing, nothing can be told.
    from dataclasses import replace

    nothing = replace(with_data, trials=tuple(replace(t, status="no_data") for t in with_data.trials))
    assert verdict(RULE, nothing).status == "not-assessed"


@pytest.mark.parametrize(("upto", "allowed"), [(10, 2), (1000, 0)])
def test_it_keeps_its_promise(upto, allowed):
    rng = np.random.default_rng(0)
    fired = 0
    for _ in studies(400):
        seeds = rng.integers(0, upto, int(rng.integers(3, 41))).tolist()
        fired += verdict(RULE, study(seeds)).status == "fired"
    assert fired <= scaled(allowed, of=400)

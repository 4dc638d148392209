"""multi-host: several ranks log, save, keep statistics of their own, or read all of the data."""

import json

import numpy as np
import pytest
from promise import studies
from studies import make_study, verdict

RULE = "multi-host"


def ranks(world=4, parallel="ddp", **facts):
    """The tag as the hook writes it: a list by rank, anything else the same on all."""
    said = {n: {"by_rank": v} if isinstance(v, list) else {"same": v} for n, v in facts.items()}
    return {"ranks": json.dumps({"world_size": world, "parallel": parallel, "backend": "nccl", "facts": said})}


def healthy(world=4, **others):
    facts = {
        "seed": 1,
        "loader_seed": 0,
        "shard_examples": 10_000 // world,
        "host": "a",
        "logs": [True] + [False] * (world - 1),
        "checkpoints": [True] + [False] * (world - 1),
    }
    return {"schema": "1", "n_train": "10000", **ranks(world, **{**facts, **others})}


def study(*tags):
    params = [{"lr": 0.1 / (i + 1)} for i in range(len(tags))]
    return make_study(params, {"val/loss": [[1.0, 0.5]] * len(tags)}, tags=tags)


def example():
    return study(*[healthy(checkpoints=True)] * 3)


def subjects(shown):
    return [f.subject for f in verdict(RULE, shown).findings]


def test_ranks_that_keep_out_of_each_others_way():
    assert verdict(RULE, study(*[healthy()] * 3)).status == "quiet"


@pytest.mark.parametrize(
    ("subject", "facts", "severity", "words"),
    [
        ("checkpoints", {"checkpoints": True}, "warning", "4 of 4 ranks"),
        ("logs", {"logs": [True, False, True, False]}, "note", "2 of 4 ranks"),
        ("sync_batch_norm", {"sync_batch_norm": False}, "note", "each rank"),
        ("shard_examples", {"shard_examples": 10_000}, "note", "each rank"),
    ],
)
def test_each_fault(subject, facts, severity, words):
    shown = study(*[healthy(**facts)] * 3)
    (finding,) = verdict(RULE, shown).findings
    assert (finding.subject, finding.severity) == (subject, severity)
    assert f"In 3 of 3 trials, {words}" in finding.message
    assert finding.changes[0].text == finding.action


def test_every_fault_is_said_once():
    faulty = healthy(checkpoints=True, logs=True, sync_batch_norm=False, shard_examples=10_000)
    assert subjects(study(healthy(), *[faulty] * 2)) == ["checkpoints", "sync_batch_norm", "logs", "shard_examples"]


def test_sharded_models_are_saved_by_all_ranks():
    assert verdict(RULE, study(ranks(parallel="fsdp", checkpoints=True))).status == "quiet"


@pytest.mark.parametrize("layers", [{"layers": 9, "frozen": 9}, {"layers": 9, "without_running_stats": 9}])
def test_batch_norm_that_keeps_no_statistics(layers):
    frozen = {**healthy(sync_batch_norm=False), "batch_norm": json.dumps(layers)}
    assert verdict(RULE, study(frozen)).status == "quiet"
    assert subjects(study({**frozen, "batch_norm": json.dumps({"layers": 9, "synced": 0})})) == ["sync_batch_norm"]


def test_the_length_of_an_epoch_tells_what_is_shared_out():
    """Loaders of some libraries share batches out where no sampler shows it."""
    shared = {**healthy(shard_examples=10_000, loader_seed=None), "batch_size": "400", "steps_per_epoch": "25"}
    assert verdict(RULE, study(shared)).status == "quiet"
    assert subjects(study({**shared, "steps_per_epoch": "100"})) == ["shard_examples"]
    assert verdict(RULE, study(healthy(shard_examples=10_000, loader_seed=None))).status == "quiet"


def test_a_training_on_one_device():
    assert verdict(RULE, study({"schema": "1"})).status == "quiet"


@pytest.mark.parametrize("tag", [{}, {"ranks": "{"}, {"ranks": "[]"}, {"ranks": '{"world_size": 4, "facts": 3}'}])
def test_it_cannot_tell_what_nobody_noted(tag):
    assert verdict(RULE, study(tag)).status == "not-assessed"


def test_it_cannot_tell_from_rank_0_alone():
    said = verdict(RULE, study(ranks(2, logs=[True, None], checkpoints=[True, None])))
    assert said.status == "not-assessed"
    assert "every rank" in said.reason


def test_it_keeps_its_promise():
    rng = np.random.default_rng(0)
    for _ in studies(200):
        world = int(rng.integers(2, 17))
        n, batch = int(rng.integers(100, 50_000)), int(rng.integers(1, 65))
        shard = -(-n // world)
        facts = {**healthy(world, shard_examples=shard), "n_train": str(n), "batch_size": str(batch * world)}
        drop_last = int(rng.integers(2))
        facts["steps_per_epoch"] = str(max(shard // batch if drop_last else -(-shard // batch), 1))
        assert verdict(RULE, study(facts, {})).status == "quiet", facts

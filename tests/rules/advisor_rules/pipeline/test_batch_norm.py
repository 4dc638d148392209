"""batch-norm: statistics from few examples, or from different numbers of them."""

import json

import numpy as np
import pytest
from promise import studies
from studies import make_study, verdict

RULE = "batch-norm"
LAYERS = {"norm_layers": '{"BatchNorm2d": 20}', "batch_norm": '{"layers": 20, "synced": 0, "frozen": 0}'}


def ranks(world):
    return {"ranks": json.dumps({"world_size": world, "parallel": "ddp", "backend": "nccl", "facts": {}})}


def study(*tags):
    params = [{"lr": 0.1 / (i + 1)} for i in range(len(tags))]
    return make_study(params, {"val/loss": [[1.0, 0.5]] * len(tags)}, tags=tags)


def example():
    return study(*[{**LAYERS, "batch_size": "4"}] * 6)


def test_statistics_from_few_examples():
    (finding,) = verdict(RULE, example()).findings
    assert finding.severity == "warning"
    assert "layer norm" in finding.changes[0].text
    assert verdict(RULE, study({**LAYERS, "batch_size": "12"})).findings[0].severity == "note"


def test_statistics_from_enough_examples():
    for size in (16, 64, 128, 256):
        assert verdict(RULE, study({**LAYERS, "batch_size": str(size)})).status == "quiet"


def test_statistics_from_very_many_examples_on_one_device():
    (finding,) = verdict(RULE, study(*[{**LAYERS, "batch_size": "512"}] * 3)).findings
    assert (finding.severity, "512 examples" in finding.message, "ghost" in finding.action) == ("note", True, True)
    assert verdict(RULE, study({**LAYERS, "batch_size": "512", **ranks(8)})).status == "quiet"


def test_a_batch_is_shared_by_devices_and_micro_batches():
    spread = {**LAYERS, "batch_size": "256", "micro_batches": "4", **ranks(8)}
    (finding,) = verdict(RULE, study(spread)).findings
    assert "from 8 examples" in finding.message
    assert "SyncBatchNorm" in finding.changes[0].text
    assert verdict(RULE, study({**LAYERS, "batch_size": "256", **ranks(8)})).status == "quiet"


def test_synchronised_layers_see_all_devices():
    synced = {"batch_norm": '{"layers": 20, "synced": 20}', "batch_size": "64", **ranks(8)}
    assert verdict(RULE, study(synced)).status == "quiet"
    by_class = {"norm_layers": '{"SyncBatchNorm": 20}', "batch_size": "64", **ranks(8)}
    assert verdict(RULE, study(by_class)).status == "quiet"


def test_batch_sizes_that_are_compared():
    shown = study(*[{**LAYERS, "batch_size": str(b)} for b in (32, 64, 128)])
    (finding,) = verdict(RULE, shown).findings
    assert finding.severity == "note"
    assert "32 to 128 examples" in finding.message


@pytest.mark.parametrize(
    "layers",
    [
        {"norm_layers": '{"LayerNorm": 12}'},
        {"norm_layers": "{}"},
        {"norm_layers": '{"FrozenBatchNorm2d": 9}'},
        {"norm_layers": '{"BatchNorm2d": 9}', "batch_norm": '{"layers": 9, "frozen": 9}'},
    ],
)
def test_no_statistics_of_batches(layers):
    assert verdict(RULE, study({**layers, "batch_size": "2"})).status == "quiet"


def test_it_cannot_tell():
    assert verdict(RULE, study({"batch_size": "2"})).status == "not-assessed"
    assert "batch size" in verdict(RULE, study(LAYERS)).reason
    assert verdict(RULE, study({"norm_layers": "[", "batch_size": "2"})).status == "quiet"


def test_it_keeps_its_promise():
    rng = np.random.default_rng(0)
    for _ in studies(200):
        world, micro = int(rng.integers(1, 9)), int(rng.integers(1, 5))
        size = int(rng.integers(16, 257)) * world * micro
        tags = {**LAYERS, "batch_size": str(size), "micro_batches": str(micro), **ranks(world)}
        assert verdict(RULE, study(*[tags] * int(rng.integers(1, 9)))).status == "quiet"

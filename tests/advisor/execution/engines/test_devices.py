"""Slots for trials: GPUs and threads."""

import pytest

from advisor.execution.engines.devices import make_slots
from advisor.model.errors import AdvisorError


def test_each_slot_has_whole_gpus(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert [s["CUDA_VISIBLE_DEVICES"] for s in make_slots(["0", "1", "2", "3"], 2, None)] == ["0,1", "2,3"]
    assert make_slots(["0", "1"], 1, 1) == [{"CUDA_VISIBLE_DEVICES": "0"}]
    assert make_slots([], None, None) == [{}]
    assert all("CUDA_VISIBLE_DEVICES" not in s for s in make_slots(["0"], 0, 3))
    assert all(int(s["OMP_NUM_THREADS"]) >= 1 for s in make_slots([], None, 3))
    with pytest.raises(AdvisorError, match="3 trials at a time with 1 GPUs each need 3 GPUs, but 2 exist"):
        make_slots(["a", "b"], 1, 3)
    with pytest.raises(AdvisorError, match="lower --gpus-per-trial"):
        make_slots(["a"], 2, None)
    with pytest.raises(AdvisorError, match="each trial needs 2 GPUs, but this machine has none"):
        make_slots([], 2, None)

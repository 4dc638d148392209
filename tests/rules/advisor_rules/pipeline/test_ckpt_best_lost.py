"""ckpt-best-lost: what remains of the best trial is worse than its best step."""

import json
from dataclasses import replace

import numpy as np
import pytest
from promise import scaled, studies
from studies import make_study, verdict

RULE = "ckpt-best-lost"
T = np.linspace(0, 1, 40)
RNG = np.random.default_rng(0)


def valley(rise=0.5, noise=0.01, level=1.0):
    return level + np.where(T < 0.4, 3 * (0.4 - T) ** 2, rise * (T - 0.4)) + noise * RNG.standard_normal(len(T))


def decay(level=1.0, noise=0.01, rng=RNG):
    return level + np.exp(-6 * T) + noise * rng.standard_normal(len(T))


def study(valid, checkpoints=None, **kwargs):
    tags = [{} if c is None else {"checkpoints": json.dumps(c)} for c in checkpoints] if checkpoints else None
    return make_study([{"lr": 0.1 / (i + 1)} for i in range(len(valid))], {"val/loss": valid}, tags=tags, **kwargs)


def kept(*steps, chosen=None, policy="best-3"):
    return {"policy": policy, "kept": [{"step": s, "value": 0.0, "path": "x"} for s in steps], "chosen": chosen}


def example():
    rng = np.random.default_rng(0)
    valid = np.where(T < 0.4, 3 * (0.4 - T) ** 2, 0.5 * (T - 0.4)) + 0.01 * rng.standard_normal((3, len(T)))
    return study([0.3 + valid[0], 0.4 + valid[1], decay(0.6, rng=rng)], [kept(3800, 3900, 4000, policy="last-3")] * 3)


def test_the_last_step_is_worse_than_the_best():
    shown = study([valley()])
    (finding,) = verdict(RULE, shown).findings
    # Whether it saved its best step is not known.
    assert finding.severity == "note"
    assert finding.confidence == pytest.approx(0.6, abs=0.01)
    assert "no checkpoints" in finding.message


def test_fluctuation_about_a_plateau_is_no_loss():
    assert verdict(RULE, study([decay(noise=0.1)])).status == "quiet"


def test_a_worse_trial_loses_nothing_for_the_study():
    assert verdict(RULE, study([decay(0), valley()])).status == "quiet"
    (finding,) = verdict(RULE, study([valley(), valley(level=1.2), decay(2)])).findings
    assert "2 of the 3" in finding.message


def test_what_was_kept_decides():
    # The best step of the valley is about 1600; the last is 4000.
    assert verdict(RULE, study([valley()], [kept(1500, 1600, 1700)])).status == "quiet"
    (finding,) = verdict(RULE, study([valley()], [kept(3900, 4000)])).findings
    assert "in its best checkpoint" in finding.message
    assert finding.severity == "warning"
    assert "no checkpoints" not in finding.message
    (finding,) = verdict(RULE, study([valley()], [kept(1600, 4000, chosen=4000)])).findings
    assert "that was chosen" in finding.message
    # Our hook kept none, but the user may have: judged as a run that saves its model at the end.
    (finding,) = verdict(RULE, study([valley()], [kept(policy="none")])).findings
    assert finding.severity == "note"
    assert verdict(RULE, study([decay()], [kept(policy="none")])).status == "quiet"


def test_later_runs_overwrite_checkpoints_under_the_same_path():
    shown = study([decay(0), decay(1), decay(2)], [kept(4000, policy="all")] * 3)
    began = replace(shown, trials=tuple(replace(t, started=float(t.index)) for t in shown.trials))
    (finding,) = verdict(RULE, began).findings
    assert "is lost if the trials ran in one folder of one machine: trial-1 and trial-2 wrote" in finding.message
    assert (finding.severity, finding.confidence) == ("note", 0.5)
    together = [replace(t, facts={**t.facts, "launch": json.dumps({"host": "gpu"})}) for t in began.trials]
    (finding,) = verdict(RULE, replace(shown, trials=tuple(together))).findings
    assert "is lost: trial-1 and trial-2 wrote to the same path, x" in finding.message
    assert finding.severity == "warning"
    assert "--output-dir" in finding.action
    last = replace(shown, trials=tuple(replace(t, started=-float(t.index)) for t in shown.trials))
    assert verdict(RULE, last).status == "quiet", "the best trial was the last to write"
    hosts = [json.dumps({"host": f"gpu-{i}"}) for i in range(3)]
    apart = [replace(t, facts={**t.facts, "launch": hosts[t.index]}) for t in began.trials]
    assert verdict(RULE, replace(shown, trials=tuple(apart))).status == "quiet", "each machine has its own disk"


def test_a_shared_path_of_another_checkpoint_loses_nothing():
    """Each trial keeps its best checkpoint in its own folder and its last one in a common folder."""

    def of(i):
        entries = [{"step": 1600, "value": 0.0, "path": f"{i}/best"}, {"step": 4000, "value": 0.0, "path": "out/last"}]
        return {"policy": "best-1", "kept": entries, "chosen": 1600}

    shown = study([valley()] * 3, [of(i) for i in range(3)])
    began = replace(shown, trials=tuple(replace(t, started=float(t.index)) for t in shown.trials))
    assert verdict(RULE, began).status == "quiet"


def test_the_last_checkpoint_of_a_run_that_ends_at_its_best():
    assert verdict(RULE, study([decay()], [kept(4000, policy="last")])).status == "quiet"


@pytest.mark.parametrize("garbage", ["{", "[]", "3", '{"kept": 3}', '{"kept": [1]}', "null"])
def test_a_fact_that_cannot_be_read_is_none(garbage):
    shown = make_study([{"lr": 0.1}], {"val/loss": [valley()]}, tags=[{"checkpoints": garbage}])
    assert verdict(RULE, shown).findings[0].severity == "note"


def test_it_cannot_tell_from_few_evaluations():
    assert verdict(RULE, study([[1.0, 0.2, 3.0]])).status == "not-assessed"
    assert verdict(RULE, study([decay()], status=["diverged"])).status == "not-assessed"


def test_it_keeps_its_promise():
    rng = np.random.default_rng(5)
    fired = sum(verdict(RULE, study([decay(0, 0.1, rng) for _ in range(3)])).status == "fired" for _ in studies(200))
    assert fired <= scaled(10, of=200)

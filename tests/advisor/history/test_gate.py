"""The gate on whole studies: its three answers, the runs that it asks for, budgets, limits and failures."""

import math

import numpy as np
import pytest
from gate_studies import loop, repeated

from advisor.history.answer import GateQuestion
from advisor.history.gate import MAX_WRONGLY_KEPT_SHARE, answer_for_study, make_gate_record
from advisor.history.proposals import updated_tag_text
from advisor.model.errors import AdvisorError

BASE = repeated("base", [1.00, 1.01, 0.99, 1.005, 0.995])


def gate(*runs, direction="minimize", **question):
    candidate = question.pop("candidate", runs[-1][0])
    return answer_for_study(loop(*runs, direction=direction), GateQuestion(candidate, **question), "loop")


def wide(*values, **facts):
    return repeated("wide", list(values), params={"lr": 0.2}, **facts)


def test_a_clear_gain_is_kept_and_a_loss_discarded():
    kept = gate(*BASE, *wide(0.90, 0.905, 0.91))
    assert (kept.decision, kept.exit_status, kept.run) == ("keep", 0, ())
    assert kept.action.startswith("Keep wide")
    assert kept.gain == pytest.approx(0.095)
    assert 0 < kept.interval[0] < kept.gain < kept.interval[1]
    assert kept.incumbent_is == "the best repeated setting"
    assert kept.changed == ("lr: 0.1 → 0.2",)
    lost = gate(*BASE, *wide(1.1))
    assert (lost.decision, lost.exit_status) == ("discard", 1)


def test_a_small_gain_asks_for_named_seeds_and_their_cost():
    answer = gate(*BASE, *wide(0.985))
    assert (answer.decision, answer.exit_status) == ("not decided", 3)
    more = answer.run[0]
    assert more.setting == "wide"
    assert more.seeds == tuple(range(1, more.runs + 1))
    assert more.steps == 400 * more.runs
    assert more.hours == pytest.approx(60 * more.runs / 3600)
    assert "ask again after each run" in answer.action


def test_higher_is_better_where_the_study_maximizes():
    base = repeated("base", [0.80, 0.81, 0.79, 0.805, 0.795])
    assert gate(*base, *wide(0.9, 0.91, 0.905), direction="maximize").decision == "keep"
    assert gate(*base, *wide(0.7), direction="maximize").decision == "discard"


def test_without_repeats_it_names_the_runs_of_both_settings():
    answer = gate(("base", 1.0, {"seed": 0}), *wide(0.9))
    assert answer.decision == "not decided"
    assert [(m.setting, m.runs, m.seeds) for m in answer.run] == [("wide", 1, (1,)), ("base", 2, (1, 2))]
    assert "twice" in answer.reason


def test_identical_repeats_are_no_noise_floor():
    answer = gate(*repeated("base", [1.0, 1.0, 1.0]), *wide(0.9))
    assert (answer.decision, answer.run) == ("not decided", ())  # more runs that do not vary would not help
    assert "identical" in answer.reason


def test_a_commit_makes_another_setting():
    first, second = ({"tags": {"mlflow.source.git.commit": c * 40}} for c in "ab")
    runs = [*repeated("base", [1.0, 1.01, 0.99, 1.0], **first), *repeated("run", [0.9, 0.905, 0.9], **second)]
    answer = gate(*runs, candidate="bbbbbbb", against="aaaaaaa")
    assert answer.decision == "keep"
    assert answer.changed[0].startswith("commit: ")


def test_a_tag_can_tell_settings_apart():
    one, other = ({"tags": {"variant": v}} for v in ("old", "new"))
    runs = [*repeated("run", [1.0, 1.01, 0.99, 1.0], **one), *repeated("run", [0.9, 0.905, 0.9], **other)]
    assert gate(*runs, candidate="variant=new", against="variant=old").decision == "keep"
    with pytest.raises(AdvisorError, match="same setting"):
        gate(*runs, candidate=f"{6:032x}", against=f"{0:032x}")


def test_a_tag_that_was_named_once_tells_settings_apart_from_then_on():
    old, new, best = ({"tags": {"variant": v}} for v in ("old", "new", "best"))
    runs = [*repeated("run", [1.0, 1.01, 0.99, 1.0], **old), *repeated("run", [0.9, 0.905, 0.9], **new)]
    kept = gate(*runs, candidate="variant=new", against="variant=old")
    new["tags"]["advisor.gate"] = updated_tag_text(make_gate_record(kept))
    runs = [*runs[:4], *repeated("run", [0.9, 0.905, 0.9], **new), *repeated("other", [0.8], **best)]
    later = gate(*runs, candidate="other")
    assert (later.incumbent.runs, later.incumbent_is, later.kept_before) == (3, "the last kept setting", 1)


def test_the_last_kept_setting_is_the_incumbent():
    answer = gate(*BASE, *wide(0.90, 0.905, 0.91))
    tags = {"advisor.gate": updated_tag_text(make_gate_record(answer))}
    kept = [("wide", 0.90, {"seed": 0, "params": {"lr": 0.2}, "tags": tags}), *wide(0.90, 0.905, 0.91)[1:]]
    later = gate(*BASE, *kept, ("more", 0.80, {"seed": 0, "params": {"lr": 0.3}}))
    assert (later.incumbent.name.split()[0], later.incumbent_is, later.kept_before) == ("wide", "the last kept setting", 1)
    again = gate(*BASE, *kept, candidate="lr=0.2")
    assert (again.incumbent_is, again.looks) == ("the setting that it replaced", 2)


def test_the_number_of_settings_counts_and_alone_does_not():
    tried = [(f"t{i}", 1.05, {"seed": 0, "params": {"lr": 1 + i}}) for i in range(40)]
    loops, alone = (gate(*BASE, *tried, *wide(0.97, 0.972), alone=a) for a in (False, True))
    assert (loops.question, alone.question) == (42, 1)
    assert alone.evidence_to_keep > 3 * loops.evidence_to_keep


def test_a_larger_budget_is_no_fair_gain():
    answer = gate(*BASE, *wide(0.90, 0.905, 0.91, steps=800, seconds=120))
    assert (answer.decision, answer.exit_status) == ("discard", 1)
    assert "larger budget: 800 steps against 400 and 120 seconds against 60" in answer.reason
    assert [b.kind for b in answer.budget] == ["steps", "seconds"]
    assert gate(*BASE, *wide(0.90, 0.905, 0.91, steps=800, seconds=120), allow=("steps", "seconds")).decision == "keep"
    assert gate(*BASE, *wide(1.1, steps=800, seconds=120)).decision == "discard"


def test_limits_on_other_metrics():
    base = repeated("base", [1.00, 1.01, 0.99, 1.005], metrics={"memory": 10.0})
    runs = [*base, *wide(0.90, 0.905, 0.91, metrics={"memory": 20.0})]
    assert gate(*runs, at_most=("memory=25",)).decision == "keep"
    broken = gate(*runs, at_most=("memory=15",))
    assert (broken.decision, broken.limits[0].value) == ("discard", 20.0)
    assert "at most 15; the value is 20" in broken.reason
    unknown = gate(*base, *wide(0.90, 0.905, 0.91), at_most=("memory=25",))
    assert (unknown.decision, unknown.run) == ("not decided", ())
    assert "did not log memory" in unknown.reason
    with pytest.raises(AdvisorError, match="no run logged 'nothing'"):
        gate(*runs, at_most=("nothing=1",))


def test_a_small_validation_set_is_noted():
    facts = {"tags": {"advisor.n_valid": "100"}, "metrics": {"val_loss.std": 1.0}}
    base = repeated("base", [1.00, 1.01, 0.99, 1.005], **facts)
    answer = gate(*base, *wide(0.90, 0.905, 0.91, **facts))
    assert answer.decision == "keep"
    assert answer.notes == (
        "On other validation sets of this size the gain would vary by 0.10; only more validation examples reduce this variation.",
    )
    assert gate(*BASE, *wide(0.90, 0.905, 0.91)).notes == ()


def test_failed_and_running_candidates():
    failed = gate(*BASE, ("wide", math.nan, {"seed": 0, "params": {"lr": 0.2}, "status": "FAILED"}))
    assert (failed.decision, failed.exit_status) == ("discard", 1)
    running = gate(*BASE, ("wide", 1.2, {"seed": 0, "params": {"lr": 0.2}, "status": "RUNNING"}))
    assert running.decision == "not decided"
    partly = gate(*BASE, *wide(0.90, 0.905, 0.91), ("wide", math.nan, {"seed": 3, "params": {"lr": 0.2}, "status": "FAILED"}))
    assert partly.decision == "discard"
    assert "1 run of the candidate failed" in partly.reason


def test_a_failed_run_whose_seed_succeeded_later_does_not_count():
    failed = ("wide", math.nan, {"seed": 0, "params": {"lr": 0.2}, "status": "FAILED"})
    assert gate(*BASE, failed, *wide(0.90, 0.905, 0.91)).decision == "keep"


def test_killed_runs_of_the_candidate_are_no_way_to_a_keep():
    def killed(seed):
        return ("wide", 1.2, {"seed": seed, "params": {"lr": 0.2}, "status": "KILLED", "steps": 200})

    answer = gate(*BASE, *wide(0.90, 0.905, 0.91), *map(killed, range(3, 9)))
    assert answer.decision == "discard"
    assert "6 runs of the candidate ended before full length (0 of the incumbent)" in answer.reason
    assert gate(*BASE, killed(1), *wide(0.90, 0.905, 0.91)).decision == "keep"  # seed 1 ran again, to its end
    other = ("base", 1.2, {"seed": 9, "status": "KILLED", "steps": 200})
    assert gate(*BASE, other, killed(9), *wide(0.90, 0.905, 0.91)).decision == "keep"


def test_worthwhile_gains_are_given_in_units_or_percent():
    runs = [*BASE, *wide(0.985)]
    assert gate(*runs, worthwhile="0.5").decision == "discard"
    assert gate(*runs, worthwhile="1%").worthwhile == pytest.approx(0.01, rel=0.01)
    for bad in ("0", "-1", "much"):
        with pytest.raises(AdvisorError, match="--worthwhile"):
            gate(*runs, worthwhile=bad)
    for extreme in ("1e-7", "1e200"):
        with pytest.raises(AdvisorError, match="pass a gain from"):
            gate(*repeated("base", [1.0, 1.01]), *wide(0.985), worthwhile=extreme)


@pytest.mark.parametrize("unit", [1e-82, 1e80])
def test_extreme_units_of_the_objective(unit):
    runs = [*repeated("base", [1.00 * unit, 1.01 * unit, 0.99 * unit]), *wide(0.90 * unit, 0.905 * unit, 0.91 * unit)]
    answer = gate(*runs)
    assert answer.decision == gate(*repeated("base", [1.00, 1.01, 0.99]), *wide(0.90, 0.905, 0.91)).decision
    assert answer.interval[0] / unit == pytest.approx(0.095, abs=0.1)


def test_a_loop_without_gains_keeps_nothing():
    rng = np.random.default_rng(1)
    runs = repeated("base", list(1 + 0.01 * rng.standard_normal(4)))
    kept = 0
    for i in range(20):
        runs.append((f"p{i}", 1 + 0.01 * rng.standard_normal(), {"seed": 0, "params": {"lr": 1 + i}}))
        for seed in range(1, 4):
            answer = gate(*runs, candidate=f"p{i}", against="base")
            kept += answer.decision == "keep"
            if answer.decision != "not decided":
                break
            runs.append((f"p{i}", 1 + 0.01 * rng.standard_normal(), {"seed": seed, "params": {"lr": 1 + i}}))
    assert kept == 0
    assert MAX_WRONGLY_KEPT_SHARE == 0.05

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from promise import scaled, studies
from studies import lacking, make_study, verdict

from advisor.model.change import SetRange


def sweep(name: str, best: int, failing: int, total: int = 14, low: bool = False) -> Any:
    """`failing` trials at one end fail; the best is the trial at index `best` counted from the other end."""
    values = np.linspace(0.0, 1.0, total) if name == "x" else np.geomspace(1e-4, 1, total)
    params = [{name: float(v)} for v in (values[::-1] if low else values)]
    fine = total - failing
    curves = [[3.0, 1 + 0.1 * abs(i - best)] for i in range(fine)] + [[3.0, np.nan]] * failing
    return make_study(params, {"val/loss": curves}, status=["complete"] * fine + ["diverged"] * failing)


def example() -> Any:
    """The best beta2 lies next to values at which trials fail."""
    values = np.linspace(0.9, 0.999, 14)
    curves = [[3.0, 2 - 0.1 * i] for i in range(11)] + [[3.0, np.nan]] * 3
    status = ["complete"] * 11 + ["diverged"] * 3
    return make_study([{"beta2": float(v)} for v in values], {"val/loss": curves}, status=status)


@pytest.mark.parametrize("low", [False, True])
def test_fires_and_keeps_the_range_off_the_region(low: bool) -> None:
    study = sweep("x", 10, 3, low=low)
    (finding,) = verdict("space-boundary-infeasible", study).findings
    assert (finding.subject, finding.side) == ("x", "low" if low else "high")
    change = next(c for c in finding.changes if isinstance(c, SetRange))
    after = change.apply(study.spec).parameters["x"]
    assert (after.low, after.high) == (pytest.approx(3 / 13 if low else 0), pytest.approx(1 if low else 10 / 13))


def test_of_a_learning_rate_it_is_a_note_on_the_same_cause() -> None:
    (finding,) = verdict("space-boundary-infeasible", sweep("learning_rate", 10, 3)).findings
    assert (finding.severity, finding.changes) == ("note", ())
    assert "stability-edge" in finding.action


def test_failures_at_low_learning_rates_are_not_instability() -> None:
    assert verdict("space-boundary-infeasible", sweep("learning_rate", 10, 3, low=True)).status == "quiet"


@pytest.mark.parametrize(("best", "failing"), [(2, 3), (10, 0), (12, 1)])
def test_quiet_where_the_best_is_far_or_at_most_one_setting_fails(best: int, failing: int) -> None:
    assert verdict("space-boundary-infeasible", sweep("x", best, failing)).status == "quiet"


def test_a_lack_of_memory_is_a_limit_and_no_threshold_to_fix() -> None:
    study = sweep("x", 10, 3)
    facts = [{"error": "out of memory"} if t.status == "diverged" else {} for t in study.trials]
    trials = tuple(
        replace(t, status="infeasible" if fact else t.status, facts=fact) for t, fact in zip(study.trials, facts, strict=True)
    )
    assert verdict("space-boundary-infeasible", replace(study, trials=trials)).status == "quiet"


def test_cannot_tell() -> None:
    words = make_study([{"opt": w} for w in ("sgd", "adam")], {"val/loss": [[1.0], [2.0]]})
    assert lacking("space-boundary-infeasible", words)
    assert lacking("space-boundary-infeasible", sweep("x", 0, 14))


def test_keeps_its_promise() -> None:
    rng = np.random.default_rng(7)
    fired = 0
    for _ in studies(120):
        status = rng.permutation(["diverged"] * 4 + ["complete"] * 8).tolist()
        params = [{"a": float(u), "b": float(v)} for u, v in rng.random((12, 2))]
        curves = [[3.0, np.nan if s == "diverged" else float(rng.random())] for s in status]
        fired += verdict("space-boundary-infeasible", make_study(params, {"val/loss": curves}, status=status)).status == "fired"
    assert fired <= scaled(0.09 * 120, of=120)

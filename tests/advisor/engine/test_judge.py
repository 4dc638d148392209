"""Applying rules to a study: kinds of workload to which a rule does not apply."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

from studies import make_study

from advisor.engine.judge import NON_NETWORK_CHAPTERS, judge
from advisor.engine.pages import chapter_of_rule
from advisor.engine.registry import load_rules, rule_chapters
from advisor.engine.rule import Rule
from advisor.model.finding import Finding, Goal
from advisor.model.reading import WorkloadKind
from advisor.model.study import Study

STUDY = make_study([{"lr": 0.1}, {"lr": 0.2}], {"val/loss": [[1.0, 0.5], [1.0, 0.4]]})


class OfLosses(Rule):
    """A rule that needs losses that fall."""

    playbook: ClassVar[str] = "Examining the training curves"
    goal: ClassVar[Goal] = "pipeline"
    not_for: ClassVar[frozenset[WorkloadKind]] = frozenset({"gan"})
    id: ClassVar[str | None] = "of-losses"

    def check(self, study: Study) -> Iterator[Finding]:
        return iter(())


def test_a_rule_does_not_judge_kinds_that_it_excludes() -> None:
    (verdict,) = judge(replace(STUDY, kind="gan"), [OfLosses()])
    assert verdict.status == "not-assessed"
    assert "adversarial" in (verdict.reason or "")
    assert "--kind" in (verdict.reason or "")
    assert judge(replace(STUDY, kind="supervised"), [OfLosses()])[0].status == "quiet"


class OfResults(OfLosses):
    """A rule that reads the order of the results."""

    needs_order: ClassVar[bool] = True
    id: ClassVar[str | None] = "of-results"


def test_a_rule_that_compares_results_sees_nothing_if_they_tie() -> None:
    params, tags = [{"lr": 0.1 * (i + 1)} for i in range(4)], [{"n_valid": "64"}] * 4
    for best, status in ((63, "not-assessed"), (62, "not-assessed"), (20, "quiet")):
        curves = {"val/accuracy": [[0.1, 62 / 64]] * 3 + [[0.1, best / 64]]}
        study = make_study(params, curves, objective="val/accuracy", direction="maximize", tags=tags)
        results, losses = judge(study, [OfResults(), OfLosses()])
        assert (results.status, losses.status) == (status, "quiet")
        assert ("the results tie" in (results.reason or "")) == (status == "not-assessed")


def test_without_a_network_only_rules_of_space_and_decision_apply() -> None:
    rules = load_rules()
    verdicts = judge(replace(STUDY, kind="no-network"), rules)
    excluded = {v.rule for v in verdicts if "no network" in (v.reason or "")}
    assert excluded == {r.rule_id() for r in rules if chapter_of_rule(r) not in NON_NETWORK_CHAPTERS}
    assert set(NON_NETWORK_CHAPTERS) < set(rule_chapters())


def test_rules_of_users_apply_to_any_kind_that_they_do_not_exclude() -> None:
    assert judge(replace(STUDY, kind="no-network"), [OfLosses()])[0].status == "quiet"

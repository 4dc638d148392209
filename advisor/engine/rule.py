"""The base class of rules. The docstring of a rule is its page; its class attributes declare its relations to other rules."""

from __future__ import annotations

import ast
import contextlib
import inspect
import textwrap
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from advisor.engine.relation import Grounds, Relation
from advisor.model.change import Advise, Change
from advisor.model.evidence import AnyEvidence
from advisor.model.finding import Finding, Goal, Severity
from advisor.model.frozen import FrozenModel
from advisor.model.message import Message, convert_to_message
from advisor.model.reading import WorkloadKind
from advisor.model.space import RangeSide
from advisor.model.study import Study, Trial

__all__ = ["Count", "Expectation", "Factor", "Grounds", "QuietVerdict", "Relation", "Rule", "RuleOnGoodTrials", "Share"]

Count = Annotated[int, Field(ge=1)]
"""Threshold that is an integer of at least 1."""
Share = Annotated[float, Field(gt=0, lt=1)]
"""Threshold between 0 and 1 (exclusive)."""
Factor = Annotated[float, Field(gt=0)]
"""Threshold that is a positive factor."""


Expectation = Literal["settled", "best-beyond", "longer-reaches", "no-worse", "fewer-failures", "denser"]
"""The outcome that a rule's advice predicts for the next study:

- settled: the rule does not find the same problem again
- best-beyond: the best trial lies beyond the end of the range before its extension
- longer-reaches: longer training reaches the objective value that was forecast
- no-worse: the best value does not get worse
- fewer-failures: a smaller share of trials fails
- denser: a larger share of trials is better than the analysed study's median trial

`advisor.history.predict` tests these predictions.
"""
QuietVerdict = Literal["quiet", "not-fired"]
"""The required verdict of a rule that finds no problem:

- quiet: the rule analysed the study and found nothing
- not-fired: the rule found nothing or could not analyse the study
"""


class Rule(BaseModel):
    """A check of a study for one kind of problem. The fields of a rule class are its thresholds, which users can override.

    A rule creates no plots, writes no logs and reads no data except the study. If the study lacks data, it raises
    `MissingData`.
    """

    # `use_attribute_docstrings` is off, because reading the source of each rule takes longer than many rules take to run.
    model_config = ConfigDict(frozen=True, extra="forbid")

    playbook: ClassVar[str]
    """Section of the Deep Learning Tuning Playbook that the rule is based on."""
    grounds: ClassVar[Grounds | None] = None
    """The evidence for a rule that does not come from the Deep Learning Tuning Playbook; None for other rules."""
    goal: ClassVar[Goal]
    """Topic of the findings; it determines their priority in planning."""
    probes: ClassVar[frozenset[str]] = frozenset()
    """Kinds of probes that the rule can also analyse; see `advisor.contract.TAG_PROBE`."""
    not_for: ClassVar[frozenset[WorkloadKind]] = frozenset()
    """Workloads to which the rule does not apply; see also `judge.NON_NETWORK_CHAPTERS`."""
    compares_results: ClassVar[bool] = False
    """True if the rule compares results or lengths of trials, so that it does not apply if all runs stopped at a target value."""
    needs_order: ClassVar[bool] = False
    """True if the rule compares results and depends on their order: if results tie and the rule finds nothing, it counts as not
    assessed."""
    needs_learning: ClassVar[bool] = False
    """True if the rule uses differences or shapes of curves that are due to chance if no trial learned anything."""
    explains: ClassVar[Relation | tuple[Relation, ...]] = ()
    """Relations to findings of other rules that are effects of this rule's findings."""
    explained_by: ClassVar[Relation | tuple[Relation, ...]] = ()
    """Relations to findings of other rules that are causes of this rule's findings."""
    predicts: ClassVar[Expectation] = "settled"
    """The outcome that the rule's advice predicts for the next study."""
    before_exploitation: ClassVar[QuietVerdict | None] = None
    """Verdict of this rule that is required before the study design `exploit` is proposed; None if any verdict suffices."""
    while_running: ClassVar[bool] = False
    """True if the rule can judge a running trial from the data logged so far."""
    as_if_ended: ClassVar[bool] = False
    """True if the rule judges a running trial as if it had ended, once half of its planned steps are done."""
    unmeasured: ClassVar[frozenset[str]] = frozenset()
    """Subjects of findings whose confidences are not corrected, because their calibration was not measured."""
    id: ClassVar[str | None] = None
    """Id of the rule, if it does not follow from the file name."""

    def check(self, study: Study) -> Iterator[Finding]:
        """Yield the rule's findings on the study, most important first."""
        raise NotImplementedError

    @classmethod
    def rule_id(cls) -> str:
        """Return the rule's stable id: its file name in kebab-case."""
        return cls.id or cls.__module__.rpartition(".")[2].replace("_", "-")

    @classmethod
    def page(cls) -> str:
        return inspect.cleandoc(cls.__doc__ or "")

    @classmethod
    def threshold_docstrings(cls) -> dict[str, str]:
        """Return the docstring of each threshold of the rule, by name."""
        docstrings: dict[str, str] = {}
        for owner in (c for c in reversed(cls.__mro__) if issubclass(c, Rule) and c is not Rule):
            with contextlib.suppress(OSError, TypeError):  # the class has no source file, for example in a notebook
                (tree,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
                docstrings |= _field_docstrings(tree)
        return {name: docstrings[name] for name in cls.model_fields if name in docstrings}

    @classmethod
    def summary(cls) -> str:
        """Return the first paragraph of the rule's page."""
        return cls.page().partition("\n\n")[0].replace("\n", " ")

    def finding(
        self,
        message: Message | str,
        *,
        action: Message | str,
        severity: Severity,
        confidence: float,
        subject: str | None = None,
        side: RangeSide | None = None,
        trials: Sequence[Trial] = (),
        evidence: AnyEvidence | Sequence[AnyEvidence] = (),
        changes: Sequence[Change] | None = None,
    ) -> Finding:
        """Create a finding of this rule. The confidence is clipped to the interval 0 to 1. Without `changes`, the action
        becomes advice."""
        return Finding(
            rule=self.rule_id(),
            goal=self.goal,
            severity=severity,
            confidence=min(max(round(confidence, 3), 0.0), 1.0),
            subject=subject,
            side=side,
            trials=tuple(t.id for t in trials),
            message=convert_to_message(message),
            action=convert_to_message(action),
            playbook=self.playbook,
            evidence=(evidence,) if isinstance(evidence, FrozenModel) else tuple(evidence),
            changes=(Advise(text=str(action)),) if changes is None else tuple(changes),
        )


class RuleOnGoodTrials(Rule):
    """Base of rules that examine the best few trials."""

    best: Count = 5
    """Maximum number of best trials to examine."""
    reach: Share = 0.5
    """Maximum difference in the objective between a good trial and the best trial, as a share of the best trial's improvement
    during training."""


def _field_docstrings(tree: ast.stmt) -> dict[str, str]:
    docstrings = {}
    for field, following in pairwise(tree.body if isinstance(tree, ast.ClassDef) else ()):
        match field, following:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                docstrings[name] = inspect.cleandoc(text)
    return docstrings

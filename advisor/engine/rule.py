"""The base class of rules. The docstring of a rule is its page; its attributes declare how it relates to other rules."""

from __future__ import annotations

import ast
import contextlib
import inspect
import textwrap
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from advisor.engine.relation import Relation
from advisor.model.change import Change
from advisor.model.evidence import Evidence
from advisor.model.finding import Finding, Goal, Severity, Side
from advisor.model.message import Message, message_of
from advisor.model.study import Study, Trial

__all__ = ["Count", "Expectation", "Factor", "Relation", "Rule", "Settled", "Share"]

Count = Annotated[int, Field(ge=1)]
"""A threshold that is a count."""
Share = Annotated[float, Field(gt=0, lt=1)]
"""A threshold between 0 and 1."""
Factor = Annotated[float, Field(gt=0)]
"""A threshold that is a multiple."""


Expectation = Literal["settled", "best-beyond", "longer-reaches", "no-worse", "fewer-failures", "denser"]
"""What the advice predicts for the next study:

settled: the rule does not find the same again · best-beyond: the best trial lies beyond the old end of the range ·
longer-reaches: longer training reaches the forecast value · no-worse: the best value stays · fewer-failures: a smaller share of
trials fails · denser: a larger share of trials is better than the old median. See `advisor.history.predict`.
"""
Settled = Literal["quiet", "not-fired"]
"""quiet: the rule judged the study and found nothing · not-fired: it found nothing or could not judge."""


class Rule(BaseModel):
    """A rule of the playbook. Its fields are its thresholds: typed, each with a docstring, overridable by the user.

    A rule takes a study and yields findings. It draws nothing, logs nothing and reads nothing else. If it lacks data, it raises
    `MissingData`.
    """

    # Not `use_attribute_docstrings`: reading each rule's source takes longer than many rules do.
    model_config = ConfigDict(frozen=True, extra="forbid")

    playbook: ClassVar[str]
    """Title of the playbook's section that the rule comes from."""
    goal: ClassVar[Goal]
    """What its findings are about; decides their priority in planning."""
    probes: ClassVar[frozenset[str]] = frozenset()
    """Kinds of probes that it can judge besides ordinary studies, see `advisor.contract.TAG_PROBE`."""
    explains: ClassVar[tuple[Relation, ...]] = ()
    """Findings of other rules that follow from findings of this one."""
    explained_by: ClassVar[tuple[Relation, ...]] = ()
    """Findings of other rules that findings of this one follow from."""
    predicts: ClassVar[Expectation] = "settled"
    """What the rule's advice predicts for the next study."""
    before_exploitation: ClassVar[Settled | None] = None
    """Verdict of this rule that the `exploit` design requires; None if the rule does not matter for it."""
    id: ClassVar[str | None] = None
    """The id of a rule without a file of its own."""

    def check(self, study: Study) -> Iterator[Finding]:
        """Yield what the rule finds in the study, the most important finding first."""
        raise NotImplementedError

    @classmethod
    def rule_id(cls) -> str:
        """Return the rule's stable id: its file's name in kebab-case, `many_stopped.py` is `many-stopped`."""
        return cls.id or cls.__module__.rpartition(".")[2].replace("_", "-")

    @classmethod
    def page(cls) -> str:
        """Return the rule's documentation: its docstring."""
        return inspect.cleandoc(cls.__doc__ or "")

    @classmethod
    def described(cls) -> dict[str, str]:
        """Return the docstrings of the thresholds by name."""
        texts: dict[str, str] = {}
        for owner in (c for c in reversed(cls.__mro__) if issubclass(c, Rule) and c is not Rule):
            with contextlib.suppress(OSError, TypeError):  # a class without a source file
                (tree,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
                texts |= _docstrings(tree)
        return {name: texts[name] for name in cls.model_fields if name in texts}

    @classmethod
    def summary(cls) -> str:
        """Return the first paragraph of the page."""
        return cls.page().partition("\n\n")[0].replace("\n", " ")

    def finding(
        self,
        message: Message | str,
        *,
        action: Message | str,
        severity: Severity,
        confidence: float,
        subject: str | None = None,
        side: Side | None = None,
        trials: Sequence[Trial] = (),
        evidence: Sequence[Evidence] = (),
        changes: Sequence[Change] = (),
    ) -> Finding:
        """Return a finding of this rule; the confidence is clipped to 0..1."""
        return Finding(
            rule=self.rule_id(),
            goal=self.goal,
            severity=severity,
            confidence=min(max(round(confidence, 3), 0.0), 1.0),
            subject=subject,
            side=side,
            trials=tuple(t.id for t in trials),
            message=message_of(message),
            action=message_of(action),
            playbook=self.playbook,
            evidence=tuple(evidence),
            changes=tuple(changes),
        )


def _docstrings(tree: ast.stmt) -> dict[str, str]:
    """The strings that follow the fields of a class."""
    texts = {}
    for field, following in pairwise(tree.body if isinstance(tree, ast.ClassDef) else ()):
        match field, following:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                texts[name] = inspect.cleandoc(text)
    return texts

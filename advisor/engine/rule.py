"""What a rule is: a class in a file of its own under `rules/`, whose docstring is its page."""

from __future__ import annotations

import ast
import contextlib
import inspect
import re
import textwrap
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from advisor.model.change import Change
from advisor.model.evidence import Evidence
from advisor.model.finding import Finding, Goal, Severity, Side
from advisor.model.study import Study, Trial

Count = Annotated[int, Field(ge=1)]
"""A threshold that counts things."""
Share = Annotated[float, Field(gt=0, lt=1)]
"""A threshold between 0 and 1."""
Factor = Annotated[float, Field(gt=0)]
"""A threshold that multiplies."""


class Rule(BaseModel):
    """A rule of the playbook. Its fields are its thresholds: typed, each with a docstring, overridable by the user.

    A rule takes a study and yields findings. It draws nothing, logs nothing and reads nothing else. Where it lacks data it raises
    `MissingData`.
    """

    # Not `use_attribute_docstrings`: reading each rule's source takes longer than many rules do.
    model_config = ConfigDict(frozen=True, extra="forbid")

    playbook: ClassVar[str]
    """Title of the playbook's section that the rule comes from."""
    goal: ClassVar[Goal]
    """What a finding of it is about; decides its priority in the plan."""
    probes: ClassVar[frozenset[str]] = frozenset()
    """Kinds of probe that it can judge besides trials, see `advisor.contract.TAG_PROBE`."""

    def check(self, study: Study) -> Iterator[Finding]:
        """Yield what the rule finds in the study, the most important finding first."""
        raise NotImplementedError

    @classmethod
    def rule_id(cls) -> str:
        """The rule's stable id: the class name in kebab-case, `SpaceBoundary` is `space-boundary`."""
        return re.sub(r"(?<!^)(?=[A-Z])", "-", cls.__name__).lower()

    @classmethod
    def page(cls) -> str:
        """The rule's documentation: its docstring."""
        return inspect.cleandoc(cls.__doc__ or "")

    @classmethod
    def described(cls) -> dict[str, str]:
        """The docstrings of the thresholds that have one, by their names."""
        found: dict[str, str] = {}
        for owner in (c for c in reversed(cls.__mro__) if issubclass(c, Rule) and c is not Rule):
            with contextlib.suppress(OSError, TypeError):  # made where no file is: nobody can tell
                (tree,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
                found |= _docstrings(tree)
        return {name: found[name] for name in cls.model_fields if name in found}

    @classmethod
    def summary(cls) -> str:
        """The first sentence of the page."""
        return cls.page().partition("\n\n")[0].replace("\n", " ")

    def finding(
        self,
        message: str,
        *,
        action: str,
        severity: Severity,
        confidence: float,
        subject: str | None = None,
        side: Side | None = None,
        trials: Sequence[Trial] = (),
        evidence: Sequence[Evidence] = (),
        changes: Sequence[Change] = (),
    ) -> Finding:
        """A finding of this rule; confidence is cut to 0..1."""
        return Finding(
            rule=self.rule_id(),
            goal=self.goal,
            severity=severity,
            confidence=min(max(round(confidence, 3), 0.0), 1.0),
            subject=subject,
            side=side,
            trials=tuple(t.id for t in trials),
            message=message,
            action=action,
            playbook=self.playbook,
            evidence=tuple(evidence),
            changes=tuple(changes),
        )


def _docstrings(tree: ast.stmt) -> dict[str, str]:
    """The texts that follow the fields of a class."""
    found = {}
    for field, text in pairwise(tree.body if isinstance(tree, ast.ClassDef) else ()):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(said))):
                found[name] = inspect.cleandoc(said)
    return found

"""The rule `params-ignored`; its page is the docstring of the class."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from advisor.engine.rule import Relation, Rule, Share
from advisor.model.change import Advise
from advisor.model.evidence import CurveEvidence, FigureEvidence
from advisor.model.finding import Finding, Goal, MissingData, Severity
from advisor.model.space import is_learning_rate
from advisor.model.study import Study
from advisor_rules.pipeline import _identical_curves
from advisor_rules.pipeline._identical_curves import Twins


class ParamsIgnored(Rule):
    """Trials with different settings have the same curves, bit by bit: the settings do not reach the training.

    ## What it looks at
    All that training brings about (the objective, losses, the gradient norm), compared exactly. Three things are told apart. *All*:
    whatever the setting, the curves are the same. *Some*: wherever settings differ in nothing else and have the same seed, the
    curves are the same, though other hyperparameters do something. *Copied*: a few trials share their curves though others that
    differ as much do not.

    ## Why it matters
    A setting that is parsed and never passed on, a default that overrides it, a checkpoint or cache that is loaded instead, a file
    of results that is written over: nothing fails, every trial looks healthy, and all that the study seems to say is wrong.

    ## What to do
    Print the optimizer and the model of two trials and compare them with their settings; follow the hyperparameter from the command
    line to where it is used. Some are innocent: a clipping threshold that no gradient reaches, a regulariser too weak for the
    digits that were logged, a setting of an optimizer that was not chosen. So one of them is a warning; a learning rate is
    critical.

    ## How sure
    Two trainings that differ at all are taken to agree in each value to which a curve moves with a chance of one half: a loss of
    seven digits agrees in one case of millions, an error rate of a few hundred examples in one of ten. The chance of s of n
    settings with one curve of m moves is then at most (n choose s) / 2^(m (s - 1)), exactly. Of 1,200 simulated studies of 5 to 100
    settings, with error rates on 20 to 500 examples that agreed at one point or another, none was alarmed, nor of 40 with 1,000
    settings. Where every trial has a seed of its own, only copies show.

    *Example:* "12 settings of learning_rate, momentum and weight_decay have the same curves, bit by bit: no hyperparameter does
    anything."
    """

    playbook: ClassVar[str] = "Examining the training curves"
    goal: ClassVar[Goal] = "pipeline"
    explains: ClassVar[tuple[Relation, ...]] = (
        Relation(
            rules=(
                "space-boundary",
                "space-insensitive",
                "space-interaction",
                "space-undersampled",
                "space-shrink",
                "space-scale",
                "space-tuned-batch",
                "unfair-comparison",
                "curve-step-variance",
                "eval-size",
                "adopt",
                "tuning-saturated",
            ),
            shares="study",
            because="The settings of these trials did not reach their training, so trials differ by chance, or not at all.",
            cause_at="everywhere",
        ),
        Relation(
            rules=(
                "space-insensitive",
                "space-boundary",
                "space-interaction",
                "space-shrink",
                "space-scale",
            ),
            shares="subject",
            because="Its values left no trace in any curve: it does not reach the training, or is idle by its nature.",
            cause_at="somewhere",
        ),
    )

    false_alarms: Share = 0.001
    """How often, per study, chance may make curves agree that have nothing in common but their course."""

    def check(self, study: Study) -> Iterator[Finding]:
        """A finding if nothing matters; else one for what never does, and one for curves that occur twice."""
        seen = _identical_curves.read(study, self.false_alarms)
        if seen.settings < 2:
            raise MissingData(
                "it takes two settings whose curves show more than one value; log the objective during training"
            )
        if not seen.twins and not seen.seeds_shared:
            raise MissingData(
                "every trial has a seed of its own, which hides whether its setting did anything; write `seeds: 2` into the study "
                "file: repeated trials all have the same seeds"
            )
        if seen.twins and seen.never_matter(seen.varied):
            yield self._never(study, seen.twins, seen.varied, every=True)
            return
        idle = [t for t in seen.twins if seen.never_matter(t.names)]
        if idle:
            yield self._never(study, idle, sorted({name for t in idle for name in t.names}), every=False)
        copies = [t for t in seen.twins if t not in idle and _identical_curves.copied(t, seen.varied)]
        if copies:
            yield self._copied(study, copies)

    def _never(self, study: Study, twins: Sequence[Twins], names: Sequence[str], *, every: bool) -> Finding:
        count, what = sum(t.settings for t in twins), _listed(names)
        if every:
            message = f"{count} settings of {what} have the same curves, bit by bit: no hyperparameter does anything."
            action = "Find out why no setting reaches the training: print optimizer, model and data of two trials that differ."
        else:
            among = (
                f"among {count} trials that differ in nothing else"
                if len(twins) == 1
                else f"in {len(twins)} groups of trials"
            )
            message = f"{what} changed nothing at all: {among}, curves are the same, bit by bit."
            action = f"Check that {what} reaches the training; if it does and is idle by its nature, fix it and do not search it."
        critical = (every and len(names) > 1) or any(map(is_learning_rate, names))
        subject = None if every else " × ".join(names)
        return self._finding(study, twins, message, action, "critical" if critical else "warning", subject)

    def _copied(self, study: Study, twins: Sequence[Twins]) -> Finding:
        names = _listed(sorted({name for t in twins for name in t.names}))
        who = _listed([t.name for t in twins[0].trials])
        more = f"; {len(twins) - 1} more such groups" if len(twins) > 1 else ""
        message = f"{who} have the same curves, bit by bit, and differ in {names}, which change others{more}."
        action = f"Find out how {who} came to one result: a cache, a checkpoint that was loaded, a file that was written over."
        return self._finding(study, twins, message, action, "critical", None)

    def _finding(
        self, study: Study, twins: Sequence[Twins], message: str, action: str, severity: Severity, subject: str | None
    ) -> Finding:
        surest = min(twins, key=lambda t: t.p)
        trials = [t for group in twins for t in group.trials]
        metric = study.spec.objective.metric
        rows = (
            ("groups of trials with the same curves", f"{len(twins)}, of {surest.settings} settings the surest"),
            ("values that a curve of them moves to", f"{surest.moves}"),
            ("chance of so many, were each a coin", f"{surest.p:.2g}, limit {self.false_alarms:g}"),
        )
        return self.finding(
            message,
            action=action,
            severity=severity,
            confidence=min(1 - surest.p, 0.99),
            subject=subject,
            trials=trials,
            evidence=(
                CurveEvidence(
                    metrics=(metric,),
                    caption=f"One and the same curve of {metric}.",
                    trials=tuple(t.id for t in trials[:5]),
                ),
                FigureEvidence(rows=rows),
            ),
            changes=(Advise(text=action),),
        )


def _listed(names: Sequence[str]) -> str:
    shown = [*names[:3], f"{len(names) - 3} more"] if len(names) > 4 else list(names)
    return " and ".join([", ".join(shown[:-1]), shown[-1]]) if len(shown) > 1 else shown[0]

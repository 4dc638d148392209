"""The rule `curve-periodic`; its page is the docstring of the class."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from advisor.computed.curves.overfit import validation_curves
from advisor.engine.rule import Count, Relation, Rule, Share
from advisor.model.change import Advise
from advisor.model.evidence import CurveEvidence, FigureEvidence
from advisor.model.finding import Finding, Goal, MissingData
from advisor.model.study import Study, Trial
from advisor_rules.curves._periodicity import Cycle, read_cycles
from advisor_rules.curves._spectrum import FEWEST


class CurvePeriodic(Rule):
    """A validation curve goes up and down with a regular period.

    ## What it looks at
    The objective and the validation loss of the best few trials, where they were evaluated at regular steps: whether a period
    stands out of the spectrum that the curve's own noise has, and makes up a good part of what moves around the trend. Where the
    length of an epoch is known, its period is looked for first; any other period must be shared by most of the trials. A learning
    rate that rises again and again explains one, so such trials are left out; and so does momentum, which lets a loss swing with
    periods of up to 4 pi / (1 - momentum) steps: those count only if they are an epoch, a half or a third of one.

    ## Why it matters
    What is drawn at random has no period. One of an epoch says that the model is told the same things in the same order: the
    training data are not shuffled, or only within a buffer that is too small, or a part of them is in the validation set and is
    remembered best just after it was trained on. Results then depend on the step at which training ends.

    ## What to do
    Check that the training loader shuffles anew in each epoch, over all of the data, and that no example is both in the training
    and in the validation set (also as a near duplicate, or another record of the same person). A part that is always evaluated in
    turn, such as one shard of the validation data per evaluation, makes a period as well.

    ## How sure
    The tapered periodogram is compared with a smooth spectrum fitted to it, which follows wandering and long-memory noise; up to
    four harmonics are added. Confidence is 1 minus the p-value, corrected for all frequencies and curves, times 0.8 where the
    period is not known to be that of the data. Simulated, 300 falling curves each of 40 to 500 points with normal, heavy-tailed,
    autocorrelated (-0.5 to 0.9), decaying or rounded noise, random walks and outliers: 0 to 3 % fired, most of
    them in less than 1 %. A sine as high as the standard deviation of the noise was found in 11 % of curves of 60 points and in
    80 % of 150, one twice as high in 60 and 100 %. It takes 32 evaluations, and 4 periods.

    Example: "The curve of val/error in the best trial trial-3 goes up and down with a period of 19 steps, which is one epoch: 64%
    of its scatter around the trend repeats."
    """

    playbook: ClassVar[str] = "Setting up periodic evaluations"
    goal: ClassVar[Goal] = "pipeline"
    explains: ClassVar[tuple[Relation, ...]] = (
        Relation(
            rules=(
                "curve-step-variance",
                "stability-mid",
                "stability-spikes",
            ),
            shares="trials",
            because="The ups and downs come back with the period of the data.",
        ),
        Relation(
            rules=("ckpt-best-lost",),
            shares="trials",
            because="The curve goes up and down with the data, and the last step is not one of the good ones.",
            waits=False,
        ),
    )

    best: Count = 5
    """How many of the best trials to look at; a flaw of the data shows in all of them."""
    material: Share = 0.1
    """Smallest share of the variance around the trend that must repeat. Our choice."""
    false_alarms: Share = 0.02
    """How often, per study, noise alone may raise a finding; less than elsewhere, because it sends people to look for bugs."""

    def check(self, study: Study) -> Iterator[Finding]:
        """At most one finding."""
        judged = read_cycles(study, study.ranked()[: self.best], validation_curves(study))
        if not judged:
            raise MissingData(
                f"no good trial was evaluated {FEWEST} times at regular steps, at a learning rate that does not go up and down; "
                "evaluate several times an epoch, every so many steps"
            )
        count = len({c.trial.index for c in judged})
        for top in [c for c in judged if c.p <= self.false_alarms and c.found.share >= self.material][:1]:
            alike = {c.trial.index: c.trial for c in judged if c is top or top.shared_by(c)}
            if top.part or 2 * len(alike) > count:
                yield self._report(study, top, list(alike.values()), count)
                return
        if all(c.blind for c in judged):
            first = judged[0]
            raise MissingData(
                f"{first.metric} is evaluated every {first.every:,} steps and an epoch takes {first.epoch:,.4g}: its period cannot "
                "show; evaluate several times an epoch"
            )

    def _report(self, study: Study, top: Cycle, alike: list[Trial], judged: int) -> Finding:
        best = top.trial == study.ranked()[0]
        whose = f"{'the best trial ' if best else ''}{top.trial.name}"
        period = f"{top.steps:,.4g} {study.unit}s{_in_epochs(top)}"
        message = f"The curve of {top.metric} in {whose} goes up and down with a period of {period}: "
        message += f"{top.found.share:.0%} of its scatter around the trend repeats"
        message += f"; {len(alike) - 1} more of the {judged} trials judged have that period" if len(alike) > 1 else ""
        shuffled = top.trial.facts.get("shuffle")
        message += "; the training loader does not shuffle" if shuffled == "false" else ""
        advice = _ADVICE.get(shuffled or "", _ADVICE[""])
        return self.finding(
            message + ".",
            action=advice,
            severity="warning" if top.part else "note",
            confidence=(1 - top.p) * (1.0 if top.part else 0.8),
            subject=top.metric,
            trials=alike,
            evidence=(
                CurveEvidence(
                    metrics=(top.metric,),
                    caption=f"{top.metric} repeats every {top.steps:,.4g} {study.unit}s.",
                    trials=tuple(t.id for t in alike),
                ),
                FigureEvidence(
                    rows=(
                        ("trials judged", f"{judged}, of which {len(alike)} have this period"),
                        ("evaluations", f"{len(top.curve)} of {top.trial.name}, every {study.length(top.every)}"),
                        ("period", f"{top.found.period:.3g} evaluations, {top.steps:,.4g} {study.unit}s"),
                        ("steps of an epoch", f"{top.epoch:,.4g}" if top.epoch > 0 else "unknown"),
                        ("share of the scatter that repeats", f"{top.found.share:.0%} (told from {self.material:.0%})"),
                        ("p-value, over all frequencies and curves", f"{top.p:.2g} (told up to {self.false_alarms:g})"),
                    )
                ),
            ),
            changes=(Advise(text=advice),),
        )


def _in_epochs(cycle: Cycle) -> str:
    """The period in epochs, as an apposition."""
    if not cycle.part:
        return f" (an epoch takes {cycle.epoch:,.4g})" if cycle.epoch > 0 else ""
    what = "one epoch" if cycle.part == 1 else f"a {'half' if cycle.part == 2 else 'third'} of an epoch"
    direct = abs(cycle.steps * cycle.part / cycle.epoch - 1) < 0.2
    return (
        f", which is {what}" if direct else f", at which {what} of {cycle.epoch:,.4g} steps shows between evaluations"
    )


_ADVICE = {
    "false": "Let the training loader shuffle in every epoch, before comparing any trials.",
    "true": "Look for validation examples among the training data, before comparing any trials.",
    "": "Check that training data are shuffled anew in every epoch and that no validation example is among them.",
}

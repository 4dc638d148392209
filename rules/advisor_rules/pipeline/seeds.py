"""The rule `seeds`; its page is the docstring of the class."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import ClassVar

from advisor.computed.pipeline import ranks
from advisor.computed.space import settings
from advisor.engine.rule import Count, Rule, Share
from advisor.model.change import Advise
from advisor.model.evidence import FigureEvidence
from advisor.model.finding import Finding, Goal, MissingData, Severity
from advisor.model.study import Study, Trial


class Seeds(Rule):
    """Seeds are not known, the same in every trial, or shared between ranks that should differ.

    ## What it looks at
    - Did trials note a seed, as a tag of the hook or a parameter called seed?
    - Have (nearly) all trials the same one, and was no setting tried with two?
    - In distributed trainings: do ranks that each draw from all of the data shuffle it by the same seed, or ranks that share it out
      by different ones? Were ranks seeded differently, where nothing copies rank 0's weights to the others as
      DistributedDataParallel does?

    ## Why it matters
    Without its seed a trial cannot be repeated. One seed for all makes trials easy to compare, and may well be meant; but the best
    of them may be the one that this seed suits, and how much another seed would change is not known. Repeats with one seed are no
    repeats. Ranks that draw the same examples do the same work several times over.

    ## What to do
    Give each trial a seed of its own and log it. On every rank: the same seed for the weights; for shuffling, the same where a
    sampler shares the data out, different ones where none does.

    ## How sure
    Seeds are noted facts. From 3 trials on, one seed for all is no coincidence unless seeds are drawn from fewer than 10: measured
    on simulated studies of 3 to 40 trials, 0.03 % were alarmed with seeds drawn from 10, none with seeds from 1,000. What seeds of
    ranks mean is less sure (confidence 0.6) where it was not noted how the data is shared out.

    Example: "All 36 trials have the seed 42: how much the order of the trials owes to it is not known."
    """

    playbook: ClassVar[str] = "Considerations for multi-host pipelines"
    goal: ClassVar[Goal] = "pipeline"

    fewest: Count = 3
    """Trials with the same seed from which on that is no coincidence."""
    most: Share = 0.9
    """Share of the trials with the same seed, or with any, from which on it counts as that of all. Our choice."""

    def check(self, study: Study) -> Iterator[Finding]:
        """Findings of seeds across ranks, then of seeds across trials."""
        ended = [t for t in study.trials if study.ended[t.index]]
        if not ended:
            raise MissingData("no trial has ended yet, so there is no seed to look for")
        yield from self._of_ranks(ended)
        unknown = [t for t in ended if t.seed is None]
        if len(unknown) > (1 - self.most) * len(ended):
            which = f"{len(unknown)} of {len(ended)} trials" if len(ended) > 1 else "The only trial"
            message = f"{which} noted no seed: what was drawn at random cannot be drawn again."
            yield self._finding(message, "Set a seed in each trial and log it as the parameter seed.", "note", unknown)
        if len(unknown) < len(ended):
            yield from self._of_trials(study, [t for t in ended if t.seed is not None])

    def _of_trials(self, study: Study, known: Sequence[Trial]) -> Iterator[Finding]:
        """At most one finding of a seed that (nearly) all trials have."""
        seed, often = Counter(t.seed for t in known).most_common(1)[0]
        groups = [g for g in settings.read(study).trials if len(g) > 1 and any(t.params for t in g)]
        if often < max(self.fewest, self.most * len(known)) or any(len({t.seed for t in g}) > 1 for g in groups):
            return
        same = [t for t in known if t.seed == seed]
        which = f"All {often} trials" if often == len(known) else f"{often} of {len(known)} trials"
        repeats = [t for g in groups for t in g]
        if 2 * len(repeats) > len(known):
            message = f"{which} have the seed {seed}, so the {len(repeats)} that repeat a setting do not show what a seed changes."
            yield self._finding(message, "Repeat a setting with another seed each time.", "warning", repeats)
        else:
            message = f"{which} have the seed {seed}: how much the order of the trials owes to it is not known."
            advice = "Give each trial a seed of its own, or repeat the best few settings with several seeds."
            yield self._finding(message, advice, "note", same)

    def _of_ranks(self, ended: Sequence[Trial]) -> Iterator[Finding]:
        """A finding for each way in which ranks were seeded wrongly."""
        told = [(t, r) for t in ended if (r := ranks.read(t)) is not None]
        shared = {t.id: ranks.sampler_shares(t) or ranks.shares_data(t, r) for t, r in told}
        alike = [t for t, r in told if r.agree("loader_seed") and not shared[t.id]]
        if alike:
            message = (
                f"In {len(alike)} of {len(told)} trials, every rank shuffles all of the data by the same seed, and draws the "
                "same examples."
            )
            advice = "Share the data out among ranks, as a DistributedSampler does, or shuffle by a seed that differs by rank."
            yield self._finding(message, advice, "warning", alike, 0.9 if shared[alike[0].id] is False else 0.6)
        overlapping = [t for t, r in told if r.differ("loader_seed") and ranks.sampler_shares(t)]
        if overlapping:
            message = (
                f"In {len(overlapping)} of {len(told)} trials, ranks share the data out by different seeds, so an epoch has some "
                "examples twice and others never."
            )
            yield self._finding(message, "Give the sampler the same seed on every rank.", "warning", overlapping, 0.9)
        apart = [t for t, r in told if r.differ("seed") and r.parallel != "ddp"]
        if apart:
            message = (
                f"In {len(apart)} of {len(told)} trials, ranks were seeded differently, and nothing shows that they start from the "
                "same weights."
            )
            yield self._finding(
                message, "Set the same seed on every rank before the model is made.", "note", apart, 0.6
            )

    def _finding(
        self, message: str, advice: str, severity: Severity, trials: Sequence[Trial], confidence: float = 0.95
    ) -> Finding:
        counted = Counter("none" if t.seed is None else str(t.seed) for t in trials)
        rows = [("seeds of these trials", ", ".join(f"{s} ({n} times)" for s, n in counted.most_common(5)))]
        told = ranks.read(trials[0])
        if told is not None:
            for name in ("seed", "loader_seed"):
                rows.append((f"{name} by rank, first trial", ", ".join(map(str, told.values(name)[:8])) or "not noted"))
        return self.finding(
            message,
            action=advice,
            severity=severity,
            confidence=confidence,
            subject="seed",
            trials=trials,
            evidence=(FigureEvidence(rows=tuple(rows)),),
            changes=(Advise(text=advice),),
        )

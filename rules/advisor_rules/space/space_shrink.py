"""The rule `space-shrink`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from advisor.computed.space import sampler, settings
from advisor.engine.rule import Count, Expectation, Relation, Rule, Share
from advisor.model.change import SetRange
from advisor.model.evidence import AxisEvidence, FigureEvidence
from advisor.model.finding import Finding, Goal, MissingData
from advisor.model.study import Study
from advisor_rules.space import _good_region, _good_trials


class SpaceShrink(Rule):
    """A range is far wider than the part of it that holds good trials.

    ## What it looks at
    For every searched number of five values or more: have the results of all trials to do with it at all? Then the good trials: the
    best tenth, and all that cost little more than the best, so that a flat top is good as a whole. Do they lie closer together,
    counted in the trials between them, than as many trials drawn at random? What is left is the part of the range that they take
    up, but for strays (one in twenty at either end, never the best three), and a margin at either end. It speaks
    where that is two thirds of the range or less, on its own scale. An end stays as it is where good trials lie in the outer fifth,
    and where most trials beyond the good ones failed: `space-boundary` and `space-infeasible` judge these. The length of the
    training and the batch size are left alone.

    ## Why it matters
    Trials spent where nothing good lies say nothing new: with three such hyperparameters, half of each range is seven trials in
    eight.

    ## What to do
    Search the part that holds the good trials, with the margin, with as many trials. Widen it again if the best then lie at an end.

    ## How sure
    Both tests are exact, whatever the sampling was. The first, of shuffled results, is adjusted for all hyperparameters, the second
    for those that pass the first; confidence is one minus the larger p-value, times 0.9 for a range that nobody declared. Of 200
    simulated studies a design of equally good settings, 24 or 200 trials, also with ties and failures, 0 to 2 % raised a finding.
    The margin would miss good trials at one end in a fifth of the cases if they were spread evenly over their part. In random
    windows of dense grids the part that was left held 97 % of the best fiftieth of all points: 92 % where 16 trials had shown it,
    98 % with 64 or more. Of few trials in many hyperparameters little can be told: of a thousand trials in eight, where rates of
    half the range do well, samples of 50 showed it one time in five, of 100 one in two, of 200 nine in ten. Where a
    sampler learned from results, trials crowd around the best by themselves, which neither test allows for in full: a note, and
    less sure.

    *Example:* "All 10 good trials lie between 5.23e-05 and 0.0151 in learning_rate, 28% of its range (1e-08 to 10), with 31 of all
    100 trials."
    """

    playbook: ClassVar[str] = "After exploration concludes"
    goal: ClassVar[Goal] = "sampling"
    predicts: ClassVar[Expectation] = "denser"
    explains: ClassVar[tuple[Relation, ...]] = (
        Relation(
            rules=("space-insensitive",),
            shares="subject",
            because="Good trials lie in a part of its range only; most others differ little, so that it seems to do nothing.",
        ),
        Relation(
            rules=("space-undersampled",),
            shares="study",
            because="The good region is a small part of what was searched: of as many trials in narrower ranges, more lie in it.",
        ),
    )

    best: Share = 0.1
    """Share of the trials that count as good in any case, at least four."""
    little: Share = 0.2
    """Share of the way from the best trial to a bad one (nine in ten are better) that makes no difference: such trials are good."""
    little_of_training: Share = 0.05
    """The same as a share of what the best trial gained in training, where evaluations show it."""
    left: Share = 0.67
    """Largest share of the range that the good trials may take up, margins included."""
    missed: Share = 0.2
    """How often good trials may lie beyond the margin at one end, were they spread evenly over their part."""
    levels: Count = 5
    """Values of a hyperparameter below which it has no range to narrow."""
    false_alarms: Share = 0.05
    """How often, per study, chance alone may narrow a range that has nothing to do with the results."""

    def check(self, study: Study) -> Iterator[Finding]:
        """Yield one finding per range that is too wide, the surest first."""
        tried = settings.read(study)
        axes = _good_trials.axes(tried, levels=self.levels)
        if not axes:
            raise MissingData(f"no hyperparameter was tried at {self.levels} values; log those that the study searches")
        if len(tried) < _good_region.FEWEST or (~tried.failed).sum() < _good_region.FEWEST_GOOD:
            raise MissingData(
                f"{len(tried)} distinct settings ended, {int((~tried.failed).sum())} of them with a result; it takes "
                f"{_good_region.FEWEST}, and {_good_region.FEWEST_GOOD} with a result"
            )
        tolerance = _good_trials.tolerance(study, tried, self.little, self.little_of_training)
        chances = {name: p * len(axes) for name, p in _good_trials.matter(tried, axes).items()}
        mattering = [name for name in axes if chances[name] <= self.false_alarms]
        found = []
        for name in mattering:
            having = np.isfinite(tried.numeric[name])
            costs, failed, u = tried.costs[having], tried.failed[having], tried.numeric[name][having]
            part = _good_region.region(u, costs, _good_region.good(costs, self.best, tolerance), self.missed)
            if part is not None and part.p * len(mattering) <= self.false_alarms:
                low, high = _good_region.kept(part, u, failed)
                if high - low <= self.left:
                    found.append((max(part.p * len(mattering), chances[name]), name, part, low, high))
        learned = bool(found) and sampler.learned(study)
        for p, name, part, low, high in sorted(found, key=lambda f: f[:2]):
            finding = self._finding(study, tried, name, part, (low, high), p)
            yield sampler.weakened(finding) if learned else finding

    def _finding(
        self,
        study: Study,
        tried: settings.Settings,
        name: str,
        part: _good_region.Region,
        kept: tuple[float, float],
        p: float,
    ) -> Finding:
        domain, inferred, u = study.spec.parameters[name], name in study.inferred, tried.numeric[name]
        low, high = _good_trials.ends(domain, kept)
        first, last = (float(domain.from_unit(x)) for x in (part.low, part.high))
        having = np.flatnonzero(np.isfinite(u))
        shown = [i for i in having if part.low <= u[i] <= part.high][:5]
        strays = "All" if part.strays == 0 else f"All but {part.strays} of"
        where = f"between {first:.3g} and {last:.3g} in {name}, {part.high - part.low:.0%} of its range"
        span = f"({domain.low:g} to {domain.high:g}" + (", as inferred from the trials)" if inferred else ")")
        said = f"{strays} {part.good} good trials lie {where} {span}, with {part.inside} of all {len(having)} trials."
        why = (
            f"{strays} {part.good} good trials lie between {first:.3g} and {last:.3g} (p = {p:.2g}); the rest is margin"
        )
        return self.finding(
            said,
            action=f"Search {name} from {low:g} to {high:g} in the next study.",
            severity="warning",
            confidence=(1 - p) * (0.9 if inferred else 1),
            subject=name,
            trials=[t for i in shown for t in tried.trials[i][:1]],
            evidence=(
                AxisEvidence(
                    parameter=name,
                    caption=f"Good trials lie in a part of {name} only.",
                    trials=tuple(t.id for i in shown for t in tried.trials[i][:1]),
                    next_low=low,
                    next_high=high,
                ),
                FigureEvidence(
                    rows=(
                        ("settings tried", f"{len(tried)}, of which {int(tried.failed.sum())} failed"),
                        ("good trials", f"{part.good}, {part.strays} of them strays"),
                        ("trials among them", f"{part.inside} of {len(having)}"),
                        ("chance of this by luck alone", f"{p:.2g}, limit {self.false_alarms:g}"),
                        ("share of the range with margins", f"{kept[1] - kept[0]:.0%}, limit {self.left:.0%}"),
                        ("range", "inferred from the trials" if inferred else "declared"),
                    )
                ),
            ),
            changes=(SetRange(parameter=name, low=low, high=high, scale=domain.scale, why=why),),
        )

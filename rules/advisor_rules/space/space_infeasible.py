"""The rule `space-infeasible`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from advisor.computed.space import failures
from advisor.engine.rule import Expectation, Relation, Rule, Settled, Share
from advisor.model.change import Advise, Change, Forbid
from advisor.model.evidence import FigureEvidence
from advisor.model.finding import Finding, Goal, MissingData
from advisor.model.study import Study
from advisor.stats import outliers
from advisor_rules.space import _failure_regions, _joint_failures

BUG = "Look for a bug in the training code or the data: trials fail wherever the study looked."
MEMORY = (
    "Make room in memory first: smaller batches (with their gradients accumulated), a smaller model or lower precision."
)


class SpaceInfeasible(Rule):
    """A large share of the trials failed: diverged, crashed or got nowhere.

    ## What it looks at
    Trials whose objective or loss was not a number at the end, trials that crashed, that ran out of memory, and trials that never
    got better than at their first evaluation and either ended with a training loss well above its first value or are set apart from
    all that did learn by a gap wider than these lie from each other; a sweep over many decades whose results fall off bit by bit
    has none of the last kind. Each kind is counted. Then it looks for the one hyperparameter and side that separates failed from
    other trials best.

    ## Why it matters
    Trials that fail are wasted, and a sampler that spends half of its budget on them samples the good region half as densely. If
    they fail wherever one looks, it is not the space: something is broken.

    ## What to do
    Cut the region off, half-way between the last good and the first failed trial. Where two hyperparameters bring failures about
    together, forbid the corner of the space where they do, and keep the rest; a learning rate and a momentum are searched by what
    they act through, lr / (1 - momentum). Where failures have no place, look for a bug first; a crash is
    no reason for a lower learning rate.

    ## How sure
    That trials failed is a fact. Confidence is the probability that a further trial of this study fails with at least the share
    called large, given the counts (Jeffreys' prior). The region is found by a permutation test over all hyperparameters and sides,
    and nothing is cut off where chance alone would show as clear a one in more than the promised share of studies. A region in two
    hyperparameters has to explain more failures than the best single threshold by the logarithm of the number of trials for each
    threshold more. Of 432 simulated studies of 12 to 40 trials whose failures had nothing to do with the space, a region was found
    in 3 %; with 20 trials of 3 hyperparameters, a threshold was found in all of 37 studies, lr / (1 - momentum) in 38 of 40, and a
    corner as such in 22 of 37.

    *Example:* "11 of 32 trials failed (9 diverged, 2 crashed), 10 of them among the 12 with learning_rate of 0.12 or more."
    """

    playbook: ClassVar[str] = "Extracting insight from experimental results"
    goal: ClassVar[Goal] = "infeasible"
    probes: ClassVar[frozenset[str]] = frozenset({"learning-rate"})
    predicts: ClassVar[Expectation] = "fewer-failures"
    before_exploitation: ClassVar[Settled | None] = "not-fired"
    explains: ClassVar[tuple[Relation, ...]] = (
        Relation(
            rules=(
                "stability-early",
                "stability-mid",
                "stability-spikes",
            ),
            shares="trials",
            because="These trials lie where the space is to be cut off; this is how they fail.",
            cause_at="somewhere",
            max_severity="warning",
        ),
        Relation(
            rules=(
                "stability-early",
                "stability-mid",
                "stability-spikes",
            ),
            shares="high rates",
            because="Learning rates up there are too high to train at, where they are to be cut off and a little below.",
            cause_at="somewhere",
            max_severity="warning",
        ),
        Relation(
            rules=("space-boundary-infeasible",),
            shares="end",
            because="The best trial lies next to the failures that are counted there.",
            waits=False,
        ),
        Relation(
            rules=(
                "space-boundary",
                "space-shrink",
            ),
            shares="subject",
            because="Trials fail in a part of the same range, so that it is to be moved.",
            waits=False,
            cause_at="somewhere",
        ),
        Relation(
            rules=("space-undersampled",),
            shares="study",
            because="Trials that fail are missing elsewhere.",
            waits=False,
            cause_at="somewhere",
        ),
    )

    share: Share = 0.1
    """Share of the ended trials from which failures are many; labelled studies with many had 15 % or more, those without, none."""
    everywhere: Share = 0.5
    """Share from which failures that have no place in the space suggest a bug."""
    false_alarms: Share = 0.05
    """How often chance alone may place failures in a region of the space."""

    def check(self, study: Study) -> Iterator[Finding]:
        """Yield one finding about the study, if trials failed."""
        ended = int(study.ended.sum())
        if not ended:
            raise MissingData("no trial has ended with a result; wait for the first ones")
        kinds = failures.failures(study)
        count = int(kinds.any.sum())
        if count < self.share * ended:
            return
        named = (
            ("diverged", kinds.diverged),
            ("crashed", kinds.crashed & ~kinds.out_of_memory),
            ("ran out of memory", kinds.out_of_memory),
            ("learned nothing", kinds.stuck),
        )
        kept = [(what, int(mask.sum())) for what, mask in named if mask.any()]
        # Of one kind alone the kind says more: a trial that learned nothing did end with a result.
        told = kept[0][0] if len(kept) == 1 else f"failed ({', '.join(f'{many} {what}' for what, many in kept)})"
        found = [] if count == ended else _failure_regions.clear(study, self.false_alarms)
        both = (
            None
            if count == ended
            else _joint_failures.failures(study, _failure_regions.told_by_one(study, found), self.false_alarms)
        )
        place, changes, evidence = _failure_regions.cut(study, found)
        if both is not None:
            place, changes, found = f", among them {both.said}", (both.change,), []
        if not place and 2 * kinds.out_of_memory.sum() > count:
            changes = (Advise(text=MEMORY),)
        elif not place and count >= self.everywhere * ended:
            unstable = count == ended and 2 * kinds.crashed.sum() < count
            changes = (*_failure_regions.lower_rates(study, unstable), Advise(text=BUG))
        elif not changes:
            changes = (
                Advise(
                    text="Look at why the failed trials failed: no single hyperparameter tells them from the others."
                ),
            )
        chance = both.p if both is not None else found[0][1].p if found else None
        yield self.finding(
            f"{count} of {ended} trial{'s' if ended > 1 else ''} {told}{place}.",
            action=_sentence(changes[0]),
            severity="critical" if count >= self.everywhere * ended else "warning",
            confidence=outliers.chance_of_share(count, ended, self.share),
            subject=found[0][0] if found else " × ".join(both.parameters) if both else None,
            side=found[0][1].side if found else None,
            trials=[t for t in study.trials if kinds.any[t.index]],
            evidence=(
                *evidence,
                FigureEvidence(
                    rows=(
                        ("trials that ended", str(ended)),
                        *((what, str(int(mask.sum()))) for what, mask in named),
                        ("share that failed", f"{count / ended:.0%}, limit {self.share:.0%}"),
                        (
                            "chance of so clear a region",
                            f"{chance:.2g}, limit {self.false_alarms:g}" if chance is not None else "-",
                        ),
                    )
                ),
            ),
            changes=changes,
        )


def _sentence(change: Change) -> str:
    if isinstance(change, Forbid):
        return f"Draw no trial from where {change.region.why}."
    return change.text if isinstance(change, Advise) else f"{change.why}." if hasattr(change, "why") else BUG

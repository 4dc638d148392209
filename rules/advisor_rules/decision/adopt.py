"""The rule `adopt`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar

from advisor.computed.decision import repeats
from advisor.engine.rule import Count, Rule, Share
from advisor.model.change import Advise, Change, RepeatTrial
from advisor.model.evidence import FigureEvidence
from advisor.model.finding import Finding, Goal, MissingData
from advisor.model.study import Study
from advisor.stats import difference


class Adopt(Rule):
    """The best setting is not shown to be better than the next one, or does not repeat with other seeds.

    ## What it looks at
    The setting of the best trial and, of all others, the one with the best mean, each with its repeats (other seeds). First: do the
    repeats of the best setting hold together, or do some fail or lie so far behind that they lose to the next setting? Second: is
    the lead of its mean more than the variation from seed to seed explains? Runs with the same seed are no repeats.

    ## Why it matters
    One lucky seed wins many a study. Whoever adopts it carries a change along that brings nothing, and judges what comes next by a
    value that will not come back.

    ## What to do
    Repeat the best trial with as many other seeds as show a lead of this size four times in five (of `most` at most), and the next
    setting as often; where even that many would not, take the simpler or cheaper of the two. Where repeats fail, find out why
    before anything is compared with them. `advisor compare` decides between two trials, settings or studies, and weighs the
    complexity that one of them adds.

    ## How sure
    The lead: Welch's t, its p-value by permutation from 3 and 4 repeats on; with one repeat of either setting the variance comes
    from all repeated settings. Repeats that fall apart: the widest gap by the range of the larger group, against simulated normal
    repeats. Simulated, 200 studies a design: where 2 to 12 settings with 2 to 10 repeats are all equal, a lead passes as real in 0
    to 6 %. A lead of 4 standard deviations is doubted in 0 to 4 % with 4 or more repeats, one of 3 in 0 to 13 %; with 2 or 3
    repeats, or against a setting that ran once and is the best of many such, hardly any lead can be shown. Confidence is the
    probability that the same comparison, run again, would show no lead again. Without repeats the rule only says what to repeat.

    *Example:* "Setting of trial-7 leads by 0.0011 (0.2770 against 0.2781, 5 and 5 seeds), within the 0.0017 that seeds differ by
    (p = 0.42)."
    """

    playbook: ClassVar[str] = "Determining whether to adopt a training pipeline change or hyperparameter configuration"
    goal: ClassVar[Goal] = "exploitation"

    false_alarms: Share = 0.05
    """Level of the tests: p-value up to which a lead is real, and up to which repeats have fallen apart."""
    power: Share = 0.8
    """Probability with which the advised repeats are to show a lead of the size that was found; the field's custom."""
    most: Count = 20
    """Repeats of a setting that are worth their cost; ours. A lead that needs more is too small to find out about."""
    first: Count = 5
    """Repeats advised where nothing is known of the trial variance; the fewest that show a spread."""

    def check(self, study: Study) -> Iterator[Finding]:
        """Yield at most one finding about the best setting."""
        tried = repeats.settings(study)
        ranked = study.ranked()
        known = repeats.trial_variance(tried)
        if known is None or not ranked:
            raise MissingData(
                "no setting was run twice, with two seeds or folds, so the trial variance is unknown: repeat the best trial "
                f"{self.first} times"
            )
        own = repeats.key(ranked[0])
        best = next((s for s in tried if repeats.key(s.trials[0]) == own), None)
        others = [s for s in tried if s is not best]
        if best is None:
            return
        rival = min(others, key=lambda s: s.mean, default=None)
        behind = self._behind(best, rival)
        if behind or best.failed:
            yield self._does_not_repeat(study, best, behind)
        elif rival is not None:
            found = difference.difference(best.costs, rival.costs, known)
            if not (found.gain > 0 and found.p <= self.false_alarms):
                yield self._no_lead(study, best, rival, found)

    def _behind(self, best: repeats.Setting, rival: repeats.Setting | None) -> list[int]:
        """Repeats of the best setting that fell behind the others, be they fewer or more, and lose to the next setting."""
        gap = difference.widest_gap(best.costs)
        if gap is None or gap.p > self.false_alarms:
            return []
        worse = [i for i in range(len(best.costs)) if (i in gap.minority) == gap.worse]
        return [i for i in worse if rival is None or best.costs[i] > rival.mean]

    def _does_not_repeat(self, study: Study, best: repeats.Setting, behind: list[int]) -> Finding:
        bad = [best.trials[i] for i in behind]
        total, lost = len(best.trials) + len(best.failed), len(behind) + len(best.failed)
        values = [study.objective_value(float(c)) for c in sorted(best.costs)]
        far = f"{len(behind)} end{'s' if len(behind) == 1 else ''} as far behind as {values[-1]:.4g}" if behind else ""
        failed = f"{len(best.failed)} failed" if best.failed else ""
        return self.finding(
            f"The best setting does not repeat: of its {total} runs, the best of which reached {values[0]:.4g}, "
            f"{' and '.join(part for part in (far, failed) if part)}.",
            action="Find out what goes wrong in those runs before this setting is adopted or compared with another.",
            severity="warning",
            confidence=0.95 if best.failed else 1 - self.false_alarms,
            subject="seed",
            trials=[*bad, *best.failed],
            evidence=(
                FigureEvidence(rows=(("its runs", ", ".join(f"{v:.4g}" for v in values)), ("failed", str(lost)))),
            ),
            changes=(
                Advise(
                    text="Compare the curves of the runs that fail with those that do not (initialization, early instability, "
                    "data order) and judge the setting by its typical run, not by its best one."
                ),
            ),
        )

    def _no_lead(
        self, study: Study, best: repeats.Setting, rival: repeats.Setting, found: difference.Difference
    ) -> Finding:
        needed = difference.repeats_needed(
            found.gain, found.sd, level=self.false_alarms, power=self.power, most=self.most
        )
        needed = max(needed, self.first)
        worth = needed <= self.most
        own, other = (study.objective_value(s.mean) for s in (best, rival))
        name, next_name = best.trials[0].name, rival.trials[0].name
        noun = repeats.noun(repeats.settings(study))
        runs = f"{len(best.costs)} and {len(rival.costs)} {noun}{'s' if len(rival.costs) > 1 else ''}"
        ahead = (
            f"leads by {found.gain:.3g}"
            if found.gain > 0
            else f"has the best run but is behind by {-found.gain:.3g} on average"
        )
        lead = ahead if abs(found.gain) > 0.01 * found.sd else f"is just as good as that of {next_name}"
        why = f"its lead of {found.gain:.3g} is within the trial variance (standard deviation {found.sd:.3g})"
        said = f"p = {found.p:.2g}" if not math.isnan(found.p) else "too few repeats for a test"
        changes: list[Change] = [
            Advise(
                text=f"Until a lead is shown, take the simpler or cheaper of the settings of {name} and {next_name}."
            )
        ]
        if worth:
            changes.append(RepeatTrial(parameters=dict(best.params), seeds=needed, why=why))
        return self.finding(
            f"The setting of {name} {lead} ({own:.4g} against {other:.4g}, {runs}), within the {found.sd:.2g} that {noun}s "
            f"differ by ({said}).",
            action=f"Run {name} and {next_name} {needed} times each before either is adopted."
            if worth
            else f"Take the simpler or cheaper of {name} and {next_name}: not even {self.most} {noun}s each would tell them apart.",
            severity="note",
            confidence=1 - (difference.chance_of_replication(found, self.false_alarms) if found.gain > 0 else 0.0),
            trials=[best.trials[0], rival.trials[0]],
            evidence=(
                FigureEvidence(
                    rows=(
                        (f"runs of {name}", ", ".join(f"{study.objective_value(float(c)):.4g}" for c in best.costs)),
                        (
                            f"runs of {next_name}",
                            ", ".join(f"{study.objective_value(float(c)):.4g}" for c in rival.costs),
                        ),
                        (
                            "lead",
                            f"{found.gain:.3g}, 90 % interval {found.interval()[0]:.3g} to {found.interval()[1]:.3g}",
                        ),
                        (f"standard deviation between {noun}s", f"{found.sd:.3g}"),
                        ("chance of such a lead without any difference", f"{found.p:.2g}, limit {self.false_alarms:g}"),
                    )
                ),
            ),
            changes=changes,
        )

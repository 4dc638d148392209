"""Implements the rule `space-infeasible`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from advisor.computed.space import failures, settings
from advisor.engine.rule import Count as CountOf, Relation, Rule, Share
from advisor.model.change import Advise, Change, SetRange
from advisor.model.evidence import Evidence, table
from advisor.model.finding import Finding, MissingData, Severity
from advisor.model.learning_rate import searched_learning_rates
from advisor.model.message import Count, Message, MessagePart, Probability, list_message, say, value_with_limit
from advisor.model.space import BoolArray
from advisor.model.study import Study
from advisor.stats import outliers
from advisor_rules.space import _failed_settings, _failure_regions, _rows

BUG_ADVICE = "Look for a bug in the training code or the data: trials fail in every part of the search space."
FREE_MEMORY_ADVICE = "Free memory first: use smaller batches (with gradient accumulation), a smaller model or lower precision."
UNEXPLAINED_FAILURES_ADVICE = (
    "Look at why the failed trials failed: no single hyperparameter clearly separates them from the others."
)


class SpaceInfeasible(Rule):
    """A large share of the trials failed: they diverged, crashed or learned nothing.

    ## What it looks at
    The rule counts trials that diverged, that crashed or ran out of memory, and that learned nothing. A trial diverged if its
    objective or loss ended non-finite, if it lost what it had learned, or if the reward of its policy fell below its start. A
    trial learned nothing if it never beat its first evaluation (for a policy, also its first training rewards) and one of two
    conditions holds: the training loss ended well above its first value, or a wide gap separates the trial's result from the
    results of all trials that did learn. Each kind of failure is counted separately. The rule looks for the threshold of a
    hyperparameter, or a pair of thresholds of two hyperparameters, that best separates failed trials from the others.

    ## Why it matters
    Failed trials are wasted, so the good region gets fewer trials. If trials fail in every part of the search space, the cause
    is a bug rather than the space.

    ## What to do
    Exclude the region of failures, up to halfway between the last good and the first failed trial. If trials fail only for a
    combination of two hyperparameters, exclude that corner of the space and keep the rest of the ranges. For failures that
    depend on learning rate and momentum, search lr / (1 - momentum) instead of the learning rate. If no region explains the
    failures, look for a bug first; the finding is critical if half of the trials fail without such a region. A range that is
    too wide is never critical, even if it wastes most trials. Crashes of the program are no reason for a lower learning rate.

    ## How sure
    Confidence is the probability, given the counts of settings, that the failure rate in this study is at least the threshold.
    Repeats of a setting count as one setting. If only one setting failed, the rule names no range. A permutation test over the
    low and high ends of all hyperparameters finds the region. Too high a learning rate is the usual reason for failures, so 40
    % of the significance level is reserved for that hypothesis; three failures at the highest of ten rates suffice. A region in
    two hyperparameters must also explain enough additional failures to justify its additional thresholds. If failures were
    random, the rule found a region in 1 % of 297 simulated studies of 12 to 40 trials. With 20 trials of 3 hyperparameters, the
    rule found a true threshold in all of 37 studies, lr / (1 - momentum) in 38 of 40, and a corner in 22 of 37.
    """

    playbook = "Extracting insight from experimental results"
    goal = "infeasible"
    probes = frozenset({"learning-rate"})
    predicts = "fewer-failures"
    before_exploitation = "not-fired"
    explains = (
        Relation(
            rules=("stability-early", "stability-mid", "stability-spikes"),
            shares="trials",
            because="These trials lie in the region to cut off; their curves show how they fail.",
            cause_at="somewhere",
            max_severity="warning",
        ),
        Relation(
            rules=("stability-early", "stability-mid", "stability-spikes"),
            shares="high rates",
            because="These learning rates are too high for stable training, and the range has to end below them.",
            cause_at="somewhere",
            max_severity="warning",
        ),
        Relation(
            rules=("space-boundary-infeasible",),
            shares="end",
            because="The best trial lies next to the region where these trials fail.",
            waits=False,
        ),
        Relation(
            rules=("space-boundary", "space-shrink"),
            shares="subject",
            because="Trials fail in a part of the same range, which the other finding changes anyway.",
            waits=False,
            cause_at="somewhere",
        ),
        Relation(
            rules=("space-undersampled",),
            shares="study",
            because="Failed trials are missing in the good region, which therefore has few trials.",
            cause_at="somewhere",
        ),
    )

    share: Share = 0.1
    """Minimum share of failed trials among the ended trials. In labelled studies with many failures, at least 15 % of the
    trials failed; in other studies, none failed."""
    everywhere: Share = 0.5
    """Minimum share of failed settings that suggests a bug if no region explains the failures."""
    few: CountOf = 2
    """Maximum number of failed settings for which the finding is only a note if no region explains the failures. Our choice."""
    false_alarms: Share = 0.05
    """Maximum share of studies in which chance alone shows a region of failures."""

    def check(self, study: Study) -> Iterator[Finding]:
        ended_count = int(study.ended.sum())
        if not ended_count:
            raise MissingData("no trial has ended with a result; wait for the first results", needs="trials", at_least=1)
        failed = failures.failure_masks(study)
        count = int(failed.any.sum())
        if count < self.share * ended_count:
            return
        cut = _failure_regions.find_failure_cut(study, self.false_alarms) if count < ended_count else None
        evidence = _SettingCounts.from_ended_trials(study, failed)
        changes = cut.changes if cut is not None else self._advise_on_unexplained_failures(study, failed, evidence)
        yield self.finding(
            _message(study, failed, cut),
            action=_choose_action(changes[0], cut),
            severity="note"
            if cut is None and _advise_higher_learning_rates(study, failed)
            else self._choose_severity(cut is not None, evidence),
            confidence=outliers.chance_of_failed_share(evidence.failed, evidence.settings, self.share),
            subject=cut.subject if cut is not None else None,
            side=cut.side if cut is not None else None,
            trials=[t for t in study.trials if failed.any[t.index]],
            evidence=(*(cut.evidence if cut is not None else ()), self._figures(study, failed, cut)),
            changes=changes,
        )

    def _figures(self, study: Study, failed: failures.FailureMasks, cut: _failure_regions.FailureCut | None) -> Evidence:
        ended_count = int(study.ended.sum())
        if cut is None:
            clear: MessagePart = "no region"
        else:
            clear = value_with_limit(Probability(cut.p_value), Probability(self.false_alarms)) if cut.p_value < 1 else "no test"
        return table(
            ("trials that ended", say("{ended}", ended=ended_count)),
            *((what, say("{count}", count=int(mask.sum()))) for what, mask in _masks_by_failure_kind(study, failed)),
            _rows.share_row("share that failed", int(failed.any.sum()) / ended_count, self.share),
            ("probability of a region this clear by chance", clear),
        )

    def _choose_severity(self, explained: bool, evidence: _SettingCounts) -> Severity:
        if not explained and evidence.failed >= self.everywhere * evidence.settings:
            return "critical"
        return "note" if not explained and evidence.failed <= self.few else "warning"

    def _advise_on_unexplained_failures(
        self, study: Study, failed: failures.FailureMasks, evidence: _SettingCounts
    ) -> tuple[Change, ...]:
        """Return the advice if no region of the search space explains the failures."""
        count = failed.any.sum()
        if 2 * failed.out_of_memory.sum() > count:
            return (Advise(text=FREE_MEMORY_ADVICE),)
        if evidence.failed >= self.everywhere * evidence.settings and not _advise_higher_learning_rates(study, failed):
            unstable = failed.any[study.ended].all() and 2 * failed.crashed.sum() < count
            return (*_failure_regions.search_lower_rates(study, bool(unstable)), Advise(text=BUG_ADVICE))
        return (
            Advise(
                text=_failed_settings.failed_settings_advice(study)
                or _advise_higher_learning_rates(study, failed)
                or UNEXPLAINED_FAILURES_ADVICE
            ),
        )


class _SettingCounts(NamedTuple):
    """Numbers of distinct settings. Settings are counted, because repeats of a setting add no evidence."""

    failed: float
    """Number of failed settings: the sum over all settings of the share of their trials that failed."""
    settings: int

    @classmethod
    def from_ended_trials(cls, study: Study, failed: failures.FailureMasks) -> _SettingCounts:
        """Return the numbers of settings, computed from the ended trials of a study."""
        weights = settings.trial_weights(study)
        return cls(round(float(weights[failed.any].sum()), 9), round(float(weights.sum())))


def _advise_higher_learning_rates(study: Study, failed: failures.FailureMasks) -> str:
    """Return advice if all failed trials learned nothing, and their learning rates are below the best trial's and mostly below
    those of the other successful trials."""
    found, best = searched_learning_rates(study), study.ranked()[:1]
    if found is None or not best or (failed.any & ~failed.stuck).any():
        return ""
    rates = found[1]
    bad, others = rates[study.ended & failed.any], rates[study.ended & ~failed.any]
    if not len(bad) or not bad.max() < rates[best[0].index] or not np.median(bad) < np.median(others):
        return ""
    return (
        f"Search higher values of {found[0]}, or train longer: the trials that learned nothing have lower ones than the best."
    )


def _masks_by_failure_kind(study: Study, failed: failures.FailureMasks) -> tuple[tuple[str, BoolArray], ...]:
    # The report counts only trials on a plateau as trials that learned nothing.
    on_plateau = all(t.status == "not_learned" for t in study.trials if failed.stuck[t.index])
    return (
        ("diverged", failed.diverged),
        ("crashed", failed.crashed & ~failed.out_of_memory),
        ("ran out of memory", failed.out_of_memory),
        ("learned nothing" if on_plateau else "got hardly better than at their first evaluation", failed.stuck),
    )


def _message(study: Study, failed: failures.FailureMasks, cut: _failure_regions.FailureCut | None) -> Message:
    kinds = [(what, int(mask.sum())) for what, mask in _masks_by_failure_kind(study, failed) if mask.any()]
    # If all failures are of one kind, name this kind: "failed" would be misleading for a trial that learned nothing but ended with
    # a result.
    how = list_message([say(f"{{n}} {what}", n=n) for what, n in kinds], limit=len(kinds))
    is_whole = cut is not None and str(cut.failed_settings_phrase).startswith(f"all {int(failed.any.sum())} settings ")
    return say(
        "{count} of {ended} {how}{where}.",
        count=int(failed.any.sum()),
        ended=Count(int(study.ended.sum()), "trial"),
        how=kinds[0][0] if len(kinds) == 1 else say("failed ({kinds})", kinds=how),
        where=say(": {which}" if is_whole else ", among them {which}", which=cut.failed_settings_phrase)
        if cut is not None
        else _failed_settings.repeated_failures_clause(study),
    )


def _choose_action(change: Change, cut: _failure_regions.FailureCut | None) -> Message | str:
    if cut is not None:
        return cut.action
    if isinstance(change, SetRange):
        return _rows.range_advice("Search lower values of {name}", change.parameter, change.low, change.high)
    return change.text if isinstance(change, Advise) else BUG_ADVICE

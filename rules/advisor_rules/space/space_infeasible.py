from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from advisor.computed.space import failures, settings
from advisor.engine.rule import Count as CountOf, Relation, Rule, Share
from advisor.model.change import Advise, Change
from advisor.model.evidence import TableRow, table
from advisor.model.finding import Finding, MissingData, Severity
from advisor.model.learning_rate import searched_learning_rates
from advisor.model.message import (
    Count,
    Message,
    Name,
    Percent,
    Probability,
    Setting,
    list_message,
    lower_bound,
    say,
    upper_bound,
)
from advisor.model.space import BoolArray, FloatArray, as_number, is_learning_rate
from advisor.model.study import Study
from advisor.stats import outliers
from advisor_rules.space import _failure_regions, _rows

BUG_ADVICE = "Look for a bug in the training code or the data: trials fail in every part of the search space."
FREE_MEMORY_ADVICE = "Free memory first: use smaller batches (with gradient accumulation), a smaller model or lower precision."
UNEXPLAINED_ADVICE = "Look at why the failed trials failed: no single hyperparameter clearly separates them from the others."


class SpaceInfeasible(Rule):
    """A large share of the trials failed: they diverged, crashed or learned nothing.

    ## What it looks at
    The rule counts trials that diverged, that crashed or ran out of memory, and that learned nothing. A trial diverged if its
    objective or loss ended non-finite, if it lost what it had learned, or if the reward of its policy fell below its start. A
    trial learned nothing if it never beat its first evaluation (for a policy, also its first training rewards) and one of two
    conditions holds: the training loss ended well above its first value, or a wide gap separates the trial's result from the
    results of all trials that did learn. Each kind of failure is counted separately. The rule looks for the threshold of a
    hyperparameter, or a pair of thresholds of two hyperparameters, that best separates failed trials from the others. If there
    is none, the rule looks for thresholds at both ends of the range of the learning rate, or of another hyperparameter if none is
    searched: at low learning rates trials learn nothing, at high ones they diverge, and either hides the other.

    ## Why it matters
    Failed trials are wasted, so the good region gets fewer trials. If trials fail in every part of the search space, the cause
    is a bug rather than the space.

    ## What to do
    Exclude the region of failures, up to halfway between the last good and the first failed trial. If trials fail only for a
    combination of two hyperparameters, exclude that corner of the space and keep the rest of the ranges. For failures that
    depend on learning rate and momentum, search lr / (1 - momentum) instead of the learning rate. If no region explains the
    failures, look for a bug first; the finding is critical if half of the trials fail without such a region. A range that is
    too wide is never critical, even if it wastes most trials. If all trials below a learning rate learned nothing, all others
    learned, and the best one has the highest rate, search higher rates: unlike longer training, they cost no steps. Crashes of
    the program are no reason for a lower learning rate.

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
        count = int(failed.has_failed.sum())
        if count < self.share * ended_count:
            return
        cut = _failure_regions.find_failure_cut(study, self.false_alarms) if count < ended_count else None
        # Settings are counted instead of trials, because repeats of a setting add no evidence.
        weights = settings.trial_weights(study)
        bad, total = round(float(weights[failed.has_failed].sum()), 9), round(float(weights.sum()))
        label = "probability of a region this clear by chance"
        if cut is None:
            severity, action, changes = self._advise_on_unexplained_failures(study, failed, bad, total)
            clear: TableRow = (label, "no region")
        else:
            severity, action, changes = "warning", cut.action, cut.changes
            clear = (label, Probability(cut.p_value), self.false_alarms) if cut.p_value < 1 else (label, "no test")
        yield self.finding(
            _message(study, failed, cut),
            action=action,
            severity=severity,
            confidence=outliers.chance_of_failed_share(bad, total, self.share),
            subject=cut.subject if cut is not None else None,
            side=cut.side if cut is not None else None,
            trials=[t for t in study.trials if failed.has_failed[t.index]],
            evidence=(
                *(cut.evidence if cut is not None else ()),
                table(
                    ("trials that ended", ended_count),
                    *((what, int(mask.sum())) for what, mask in _masks_by_failure_kind(study, failed)),
                    ("share of the trials that failed", Percent(count / ended_count), self.share),
                    clear,
                ),
            ),
            changes=changes,
        )

    def _advise_on_unexplained_failures(
        self, study: Study, failed: failures.FailureMasks, bad: float, total: int
    ) -> tuple[Severity, Message | str, tuple[Change, ...] | None]:
        """Return (severity, action, changes) if no region of the search space explains the failures. `bad` and `total` are the
        numbers of failed and of all settings."""
        higher_rates, everywhere = _advise_higher_learning_rates(study, failed), bad >= self.everywhere * total
        severity: Severity = "critical" if everywhere else "note" if bad <= self.few else "warning"
        if higher_rates:
            severity = "note"
            if (higher := _failure_regions.search_higher_rates(study, self.false_alarms)) is not None:
                action = _rows.range_advice("Search higher values of {name}", higher.parameter, higher.low, higher.high)
                return severity, action, (higher,)
        text = _advise_on_few_failed_settings(study) or higher_rates or UNEXPLAINED_ADVICE
        if 2 * failed.out_of_memory.sum() > failed.has_failed.sum():
            text = FREE_MEMORY_ADVICE
        elif everywhere and not higher_rates:
            text = BUG_ADVICE
            unstable = failed.has_failed[study.ended].all() and 2 * failed.crashed.sum() < failed.has_failed.sum()
            if lower := _failure_regions.search_lower_rates(study, bool(unstable)):
                action = _rows.range_advice("Search lower values of {name}", lower.parameter, lower.low, lower.high)
                return severity, action, (lower, Advise(text=text))
        return severity, text, None


def _advise_higher_learning_rates(study: Study, failed: failures.FailureMasks) -> str:
    """Return advice if all failed trials learned nothing, at rates below the best trial's and mostly below the others'."""
    found, best = searched_learning_rates(study), study.ranked()[:1]
    if found is None or not best or (failed.has_failed & ~failed.stuck).any():
        return ""
    name, rates = found
    bad, others = rates[study.ended & failed.has_failed], rates[study.ended & ~failed.has_failed]
    if not len(bad) or not bad.max() < rates[best[0].index] or not np.median(bad) < np.median(others):
        return ""
    return f"Search higher values of {name}, or train longer: the trials that learned nothing have lower ones than the best."


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
    is_whole = cut is not None and str(cut.failed_settings_phrase).startswith(f"all {int(failed.has_failed.sum())} settings ")
    return say(
        "{count} of {ended} {how}{where}.",
        count=int(failed.has_failed.sum()),
        ended=Count(int(study.ended.sum()), "trial"),
        how=kinds[0][0] if len(kinds) == 1 else say("failed ({kinds})", kinds=how),
        where=say(": {which}" if is_whole else ", among them {which}", which=cut.failed_settings_phrase)
        if cut is not None
        else _repeated_failures_clause(study, failed),
    )


def _repeated_failures_clause(study: Study, failed: failures.FailureMasks) -> str:
    failed_settings = [g for g in settings.settings_of_all_lengths(study).trials if any(failed.has_failed[t.index] for t in g)]
    return ", all of them repeats of one setting" if len(failed_settings) == 1 and failed.has_failed.sum() > 1 else ""


def _advise_on_few_failed_settings(study: Study) -> str:
    """Return advice if a hyperparameter separates the failed settings from all others, but the failed settings are too few for
    a test; else ""."""
    tried = settings.settings_of_all_lengths(study)
    sides = {n: _side_of_failures(u, tried.failed, n in tried.choices) for n, u in {**tried.numeric, **tried.choices}.items()}
    apart = [n for n, side in sides.items() if side]
    rate = next((n for n in apart if sides[n] == "high" and is_learning_rate(n)), None)
    if tried.failed.sum() == 1 and apart and apart != [rate]:
        group = tried.trials[int(tried.failed.argmax())]
        failed = int(failures.failure_masks(study).has_failed[[t.index for t in group]].sum())
        which = f"all {failed} failed trials are repeats of one setting" if failed > 1 else "only one trial failed"
        values = list_message([say("{n} ({v})", n=Name(n), v=Setting(group[0].params[n])) for n in apart], limit=6)
        text = "This setting differs from all others in {values}, so the cause is not known."
        return str(say(f"Find out why one setting fails: {{which}}. {text}", which=which, values=values))
    if rate is None:
        return ""
    rates = np.array([as_number(group[0].params.get(rate)) for group in tried.trials])
    others = list_message([Name(n) for n in apart if n != rate])
    return str(
        say(
            "Search lower values of {name}: it is at least {high} in all failed {units} and at most {low} in the others. "
            "So few {units} do not prove that {name} is the cause{others}.",
            name=Name(rate),
            high=lower_bound(float(np.nanmin(rates[tried.failed]))),
            low=upper_bound(float(np.nanmax(rates[~tried.failed]))),
            units="settings" if any(len(group) > 1 for group in tried.trials) else "trials",
            others=say(", and the failed ones also differ in {names}", names=others) if len(apart) > 1 else "",
        )
    )


def _side_of_failures(positions: FloatArray, failed: BoolArray, is_choice: bool) -> str:
    """Return the side of the axis on which all failed settings and no others lie ("other" for a choice); "" if there is
    none."""
    known = np.isfinite(positions)
    bad, fine = positions[failed & known], positions[~failed & known]
    if not (len(bad) and len(fine)):
        return ""
    if is_choice:
        return "" if set(bad) & set(fine) else "other"
    return "high" if bad.min() > fine.max() else "low" if bad.max() < fine.min() else ""

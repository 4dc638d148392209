from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from advisor.computed.decision import repeats
from advisor.engine.rule import Relation, Rule, Share
from advisor.model.evidence import curve_plot, table
from advisor.model.finding import Finding, MissingData, Severity
from advisor.model.message import Count as Quantity, Message, Name, Probability, list_message, say
from advisor.model.parameter_kinds import concerns_machine_only
from advisor.model.space import is_learning_rate
from advisor.model.study import Signal, Study, Trial

_RESULT_SIGNALS: tuple[Signal, ...] = ("train_loss", "train_eval_loss", "train_objective", "valid_loss", "grad_norm")
_Setting: TypeAlias = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class _Copies:
    trials: tuple[Trial, ...]
    names: tuple[str, ...]
    settings: int
    changes: int
    """Number of value changes in the trial's curve that changes most often."""
    p_value: float
    """Probability that at least this many settings of the study have identical curves by chance."""


@dataclass(frozen=True)
class _TrialResults:
    judged: tuple[Trial, ...]
    settings: Mapping[int, _Setting]
    """Settings of the judged trials, by their index."""
    curves: Mapping[int, bytes]
    """All result curves of each judged trial as bytes, by its index."""
    changes: Mapping[int, int]
    """Number of value changes in the curve that changes most often, by the index of the trial."""

    def have_no_effect(self, names: Collection[str]) -> bool:
        settings: dict[object, set[_Setting]] = defaultdict(set)
        curves: dict[object, set[bytes]] = defaultdict(set)
        for trial in self.judged:
            setting = self.settings[trial.index]
            key = (trial.seed, tuple(part for part in setting if part[0] not in names))
            settings[key].add(setting)
            curves[key].add(self.curves[trial.index])
        compared_keys = [key for key in settings if len(settings[key]) > 1]
        return bool(compared_keys) and all(len(curves[key]) == 1 for key in compared_keys)


class ParamsIgnored(Rule):
    """Trials with different settings have identical curves, so the settings do not reach the training.

    ## What it looks at
    The rule compares the results of training (objective, losses, gradient norm) for exact equality. The rule distinguishes
    three cases:

    - *All*: all curves are identical, at any setting.
    - *Some*: the curves are identical if settings differ only in certain hyperparameters and share a seed.
    - *Copied*: a few trials have identical curves, although other trials with equally large differences do not.

    ## Why it matters
    Identical curves have four usual causes: a setting is read and never used, a default overrides it, a checkpoint or cache is
    loaded instead, or a file of results is overwritten. The training reports no error and every trial looks healthy, but every
    conclusion of the study is wrong.

    ## What to do
    Print the optimizer and the model of two trials and compare them with their settings. Follow the hyperparameter from the
    command line to its use. Some hyperparameters have no effect for good reasons: a clipping threshold above every gradient
    norm, a regulariser too weak for the logged digits, a setting of another optimizer. A finding about one hyperparameter is
    therefore only a warning, but a finding about a learning rate is critical.

    ## How sure
    Confidence is 1 minus the probability that the curves agree by chance. Two different training runs are assumed to agree in
    each new value of a curve with probability 1/2; losses with seven digits agree far more rarely. If s of n settings share a
    curve with m changes, the probability of this agreement is at most (n choose s) / 2^(m (s - 1)). The rule never fired in
    1,200 simulated studies of 5 to 100 settings with error rates on 20 to 500 examples, nor in 40 studies with 1,000 settings.
    If every trial has its own seed, the rule can find only results that were copied from another trial.
    """

    playbook = "Examining the training curves"
    goal = "pipeline"
    explains = (
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
            because="The settings do not reach the training, so trials differ by chance or not at all.",
            cause_at="everywhere",
        ),
        Relation(
            rules=("space-insensitive", "space-boundary", "space-interaction", "space-shrink", "space-scale"),
            shares="subject",
            because="The values of this hyperparameter changed no curve: it does not reach the training, or has no effect by "
            "design.",
            cause_at="somewhere",
        ),
    )

    false_alarms: Share = 0.001
    """Maximum share of studies in which different training runs agree by chance. Our choice."""

    def check(self, study: Study) -> Iterator[Finding]:
        """If no hyperparameter has an effect, yield a single finding. If some hyperparameters have an effect, yield at most two
        findings: one about hyperparameters without an effect, and one about copied results."""
        results = _read_results(study)
        settings = set(results.settings.values())
        if len(settings) < 2:
            reason = "the rule needs two settings whose curves have more than one value; log the objective during training"
            raise MissingData(reason, needs="evaluations", at_least=2)
        groups = _find_identical_trials(results, self.false_alarms)
        if not groups and len({t.seed for t in results.judged}) >= len(settings):
            raise MissingData(
                "every trial has a different seed, which hides the effect of its setting; write `seeds: 2` into the study file, "
                "so that trials share seeds",
                needs="design",
            )
        varied_names = _varied_names(settings)
        if groups and results.have_no_effect(varied_names):
            yield self._report_no_effect(study, groups, varied_names, every=True)
            return
        without_effect = [t for t in groups if results.have_no_effect(t.names)]
        if without_effect:
            names = sorted({name for t in without_effect for name in t.names})
            yield self._report_no_effect(study, without_effect, names, every=False)
        # A learning rate, or all hyperparameters together, would change any training.
        copies = [
            t
            for t in groups
            if t not in without_effect
            and (any(map(is_learning_rate, t.names)) or (len(t.names) > 1 and t.names == varied_names))
        ]
        if copies:
            yield self._report_copied_results(study, copies)

    def _report_no_effect(self, study: Study, groups: Sequence[_Copies], names: Sequence[str], *, every: bool) -> Finding:
        shown, n = list_message((Name(name) for name in names), 4), sum(t.settings for t in groups)
        critical = (every and len(names) > 1) or any(map(is_learning_rate, names))
        severity: Severity = "critical" if critical else "warning"
        if every:
            text = "{n} settings of {names} have identical curves. No hyperparameter has any effect."
            action = say(
                "Fix the training script: print optimizer, model and data of two trials that differ, and compare them. Then train "
                "the same trials again, with `advisor run --retry all` if it launched them."
            )
            return self._build_finding(study, groups, say(text, n=n, names=shown), action, severity, None)
        trials = Quantity(n, "trial") if len(groups) == 1 else say("{n} groups of trials", n=len(groups))
        text = "Changing {names} had no effect: {trials} that differ in nothing else have identical curves."
        template = "Fix {names} in the training script. If a lack of effect is intended, stop searching {names}."
        action = say(template, names=shown)
        return self._build_finding(study, groups, say(text, names=shown, trials=trials), action, severity, " × ".join(names))

    def _report_copied_results(self, study: Study, groups: Sequence[_Copies]) -> Finding:
        names = list_message((Name(name) for name in sorted({name for t in groups for name in t.names})), 4)
        trials, n_others = list_message((Name(t.name) for t in groups[0].trials), 4), len(groups) - 1
        more_text = say(" There are {n} more groups of identical curves.", n=n_others) if n_others else ""
        text = "The curves of {trials} are identical, although the trials differ in {names}, which affects other trials.{more}"
        action = "Find out why {trials} have identical results: maybe a cache, a loaded checkpoint or an overwritten file."
        message = say(text, trials=trials, names=names, more=more_text)
        return self._build_finding(study, groups, message, say(action, trials=trials), "critical", None)

    def _build_finding(
        self,
        study: Study,
        groups: Sequence[_Copies],
        message: Message,
        action: Message,
        severity: Severity,
        subject: str | None,
    ) -> Finding:
        strongest, metric = min(groups, key=lambda t: t.p_value), study.spec.objective.metric
        trials = [t for group in groups for t in group.trials]
        return self.finding(
            message,
            action=action,
            severity=severity,
            confidence=min(1 - strongest.p_value, 0.99),
            subject=subject,
            trials=trials,
            evidence=(
                curve_plot(metric, say("The curves of {metric} are identical.", metric=Name(metric)), trials[:5]),
                table(
                    ("groups of identical curves", len(groups)),
                    ("settings in the group that is least likely by chance", strongest.settings),
                    ("value changes along each curve of this group", strongest.changes),
                    ("probability that the curves agree by chance", Probability(strongest.p_value), self.false_alarms),
                ),
            ),
        )


def _read_results(study: Study) -> _TrialResults:
    # Parameters of the machine, such as the number of data workers, cannot change a result.
    names = {name for name in study.searched if not concerns_machine_only(name)}
    metrics = dict.fromkeys([study.spec.objective.metric, *(study.signals[s] for s in _RESULT_SIGNALS if s in study.signals)])
    trials, settings, curves, changes = [], {}, {}, {}
    for trial in (t for t in study.trials if study.ended[t.index]):
        results = [study.metric(trial, name) for name in metrics]
        n_changes = max(int(np.count_nonzero(np.diff(c.finite.values))) for c in results)
        if n_changes:
            trials.append(trial)
            settings[trial.index] = tuple(part for part in repeats.key(trial) if part[0] in names)
            curves[trial.index] = b"|".join(part for c in results for part in (c.steps.tobytes(), c.values.tobytes()))
            changes[trial.index] = n_changes
    return _TrialResults(tuple(trials), settings, curves, changes)


def _find_identical_trials(results: _TrialResults, false_alarms: float) -> list[_Copies]:
    """Return the groups of settings with identical results (objective, losses and gradient norm), largest group first.

    The p-value assumes that two different training runs agree in each new value of a curve with probability 1/2. The true
    probability is far lower, because curves are compared in all logged digits. The p-value uses the curve with the most
    changes, and is corrected for the number of ways to choose as many settings from all settings.
    """
    trials_by_curve: dict[bytes, list[Trial]] = defaultdict(list)
    for trial in results.judged:
        trials_by_curve[results.curves[trial.index]].append(trial)
    n_settings, groups = len(set(results.settings.values())), []
    for group in trials_by_curve.values():
        own_settings, changes = {results.settings[t.index] for t in group}, results.changes[group[0].index]
        log_choices = math.log(math.comb(n_settings, len(own_settings)))
        p = math.exp(min(log_choices - changes * (len(own_settings) - 1) * math.log(2), 0.0))
        if len(own_settings) > 1 and p <= false_alarms:
            groups.append(_Copies(tuple(group), _varied_names(own_settings), len(own_settings), changes, p))
    return sorted(groups, key=lambda t: (-t.settings, t.trials[0].index))


def _varied_names(settings: Collection[_Setting]) -> tuple[str, ...]:
    common = set[tuple[str, str]].intersection(*map(set, settings)) if settings else set()
    return tuple(sorted({name for setting in settings for name, _ in set(setting) - common}))

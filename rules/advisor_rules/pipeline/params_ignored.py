"""Implements the rule `params-ignored`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from advisor.engine.rule import Relation, Rule, Share
from advisor.model.change import Advise
from advisor.model.evidence import curve_plot, table
from advisor.model.finding import Finding, MissingData, Severity
from advisor.model.message import Count as Quantity, Message, Name, Number, Probability, list_message, say, value_with_limit
from advisor.model.space import is_learning_rate
from advisor.model.study import Study
from advisor_rules.pipeline._identical_curves import IdenticalTrials, find_identical_curves, settings_differ_clearly


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
    curve with m changes, the probability is at most (n choose s) / 2^(m (s - 1)). The rule never fired in 1,200 simulated
    studies of 5 to 100 settings with error rates on 20 to 500 examples, nor in 40 studies with 1,000 settings. If every trial
    has its own seed, the rule can find only results that were copied from another trial.
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
            shares="study",
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
        curves = find_identical_curves(study, self.false_alarms)
        if curves.settings < 2:
            raise MissingData(
                "the rule needs two settings whose curves have more than one value; log the objective during training",
                needs="evaluations",
                at_least=2,
            )
        if not curves.identical_groups and not curves.has_shared_seeds:
            raise MissingData(
                "every trial has a different seed, which hides the effect of its setting; write `seeds: 2` into the study file, "
                "so that trials share seeds",
                needs="design",
            )
        if curves.identical_groups and curves.have_no_effect(curves.varied_names):
            yield self._report_no_effect(study, curves.identical_groups, curves.varied_names, every=True)
            return
        without_effect = [t for t in curves.identical_groups if curves.have_no_effect(t.differing_names)]
        if without_effect:
            yield self._report_no_effect(
                study, without_effect, sorted({name for t in without_effect for name in t.differing_names}), every=False
            )
        copies = [
            t for t in curves.identical_groups if t not in without_effect and settings_differ_clearly(t, curves.varied_names)
        ]
        if copies:
            yield self._report_copied_results(study, copies)

    def _report_no_effect(
        self, study: Study, twins: Sequence[IdenticalTrials], names: Sequence[str], *, every: bool
    ) -> Finding:
        what = list_message((Name(name) for name in names), 4)
        critical = (every and len(names) > 1) or any(map(is_learning_rate, names))
        severity: Severity = "critical" if critical else "warning"
        if every:
            message = say(
                "{n} settings of {names} have identical curves. No hyperparameter has any effect.",
                n=sum(t.settings for t in twins),
                names=what,
            )
            action = say(
                "Fix the training script: print optimizer, model and data of two trials that differ, and compare them. Then train "
                "the same trials again, with `advisor run --retry all` if it launched them."
            )
            return self._build_finding(study, twins, message, action, severity, None)
        count = Quantity(sum(t.settings for t in twins), "trial")
        message = say(
            "Changing {names} had no effect: {trials} that differ in nothing else have identical curves.",
            names=what,
            trials=count if len(twins) == 1 else say("{n} groups of trials", n=len(twins)),
        )
        action = say("Fix {names} in the training script. If a lack of effect is intended, stop searching {names}.", names=what)
        return self._build_finding(study, twins, message, action, severity, " × ".join(names))

    def _report_copied_results(self, study: Study, twins: Sequence[IdenticalTrials]) -> Finding:
        names = list_message((Name(name) for name in sorted({name for t in twins for name in t.differing_names})), 4)
        trials, other_pairs = list_message((Name(t.name) for t in twins[0].trials), 4), len(twins) - 1
        message = say(
            "The curves of {trials} are identical, although the trials differ in {names}, which affects other trials.{more}",
            trials=trials,
            names=names,
            more=say(" There are {n} more groups of identical curves.", n=other_pairs) if other_pairs else "",
        )
        action = say(
            "Find out why {trials} have identical results: perhaps through a cache, a loaded checkpoint, an overwritten file.",
            trials=trials,
        )
        return self._build_finding(study, twins, message, action, "critical", None)

    def _build_finding(
        self,
        study: Study,
        twins: Sequence[IdenticalTrials],
        message: Message,
        action: Message,
        severity: Severity,
        subject: str | None,
    ) -> Finding:
        surest = min(twins, key=lambda t: t.p_value)
        trials = [t for group in twins for t in group.trials]
        metric = study.spec.objective.metric
        chance = value_with_limit(Probability(surest.p_value), Number(self.false_alarms))
        return self.finding(
            message,
            action=action,
            severity=severity,
            confidence=min(1 - surest.p_value, 0.99),
            subject=subject,
            trials=trials,
            evidence=(
                curve_plot(metric, say("The curves of {metric} are identical.", metric=Name(metric)), trials[:5]),
                table(
                    ("groups of identical curves", len(twins)),
                    ("settings in the group of curves that is least likely by chance", surest.settings),
                    ("changes of value in the curves of this group", surest.change_count),
                    ("probability that the curves agree by chance", chance),
                ),
            ),
            changes=(Advise(text=str(action)),),
        )

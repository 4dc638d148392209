from __future__ import annotations

from collections.abc import Iterator

from advisor.computed.curves.overfit import validation_cost_functions
from advisor.engine.rule import Count, Relation, Rule, Share
from advisor.model.evidence import curve_plot, table
from advisor.model.finding import Finding, MissingData
from advisor.model.message import Message, Name, Number, Percent, Probability, say
from advisor.model.study import Study, Trial
from advisor.model.words import number
from advisor_rules.curves._periodicity import MIN_POINTS, CurvePeriod, find_curve_periods

_ADVICE_BY_SHUFFLING = {
    "false": "Fix the training loader before you compare trials: let it shuffle in every epoch.",
    "true": "Look for validation examples among the training data before you compare trials.",
    "": "Check that the training data are shuffled in every epoch and that the training data contain no validation example.",
}


class CurvePeriodic(Rule):
    """A validation curve oscillates with a regular period.

    ## What it looks at
    The rule reads the objective and the validation loss of the best few trials, if they were evaluated at regular steps. A
    period counts if it stands out from the spectrum of the curve's noise and explains a material share of the variation around
    the trend. If the length of an epoch is known, the period of one epoch is tested separately from other periods. A period
    that is not an epoch, or a half or a third of an epoch, must occur in most of the trials. Two harmless causes are excluded:
    a cyclic learning rate, and momentum, which can cause periods below 4 pi / (1 - momentum) steps, unless the period equals
    one epoch, half an epoch or a third of an epoch.

    ## Why it matters
    Random sampling of training data causes no period. A period of one epoch means that the model sees the same examples in the
    same order. The cause may be training data that are not shuffled, or that are shuffled only within a small buffer. Another
    possible cause is that some training examples are also in the validation set: the model remembers shared examples best just
    after training on them. With a periodic curve, results depend on the step at which training ends.

    ## What to do
    Check that the training loader shuffles all of the data in each epoch, and that no example is in both the training and the
    validation set (also as a near duplicate, or as another record of the same person). Evaluating one shard of the validation
    data after another also causes a period.

    ## How sure
    Confidence is 1 minus the p-value, corrected for all frequencies and curves, times 0.8 if the period is not an epoch. A
    curve is tested if it has at least 32 evaluations and 4 periods. In 300 simulated studies per design of falling curves
    without a period (40 to 500 points; autocorrelated, heavy-tailed, decaying or rounded noise, random walks, outliers) the
    rule fired in 0 to 3 % of studies, mostly below 1 %. A sine with an amplitude of one standard deviation of the noise was
    found in 11 % of curves of 60 points and in 80 % of curves of 150 points; with twice this amplitude, in 60 and 100 %.
    """

    playbook = "Setting up periodic evaluations"
    goal = "pipeline"
    explains = (
        Relation(
            rules=("curve-step-variance", "stability-mid", "stability-spikes"),
            shares="trials",
            because="The curve moves up and down with the period of the data.",
        ),
        Relation(
            rules=("ckpt-best-lost",),
            shares="trials",
            because="The curve moves up and down with the period of the data, and the trial ends between two good steps.",
            waits=False,
        ),
    )

    best: Count = 5
    """Number of best trials to test; a fault in the data affects all of them. Our choice."""
    material: Share = 0.1
    """Minimum share of the variance around the trend that the period explains. Our choice."""
    false_alarms: Share = 0.02
    """Maximum share of studies in which noise alone raises a finding. The limit is stricter than in most rules, because a
    finding starts a search for bugs."""

    def check(self, study: Study) -> Iterator[Finding]:
        periods = find_curve_periods(study, study.ranked()[: self.best], validation_cost_functions(study))
        if not periods:
            reason = (
                f"no good trial without a cyclic learning rate was evaluated {MIN_POINTS} times at regular steps; evaluate several "
                "times an epoch, at a fixed interval"
            )
            raise MissingData(reason, needs="evaluations", at_least=MIN_POINTS)
        trial_count = len({c.trial.index for c in periods})
        significant = (c for c in periods if c.p_value <= self.false_alarms)
        top = next((c for c in significant if c.strongest_period.explained_share >= self.material), None)
        if top is not None:
            trials = {c.trial.index: c.trial for c in periods if c is top or top.has_same_period(c)}
            if top.periods_per_epoch or 2 * len(trials) > trial_count:
                yield self._report_period(study, top, list(trials.values()), trial_count)
                return
        if all(c.misses_epoch_period for c in periods):
            first = periods[0]
            raise MissingData(
                f"{first.metric} is evaluated every {first.evaluation_interval:,} steps and an epoch takes "
                f"{number(first.steps_per_epoch)}, so the period of an epoch is not visible; evaluate several times an epoch"
            )

    def _report_period(self, study: Study, top: CurvePeriod, trials: list[Trial], judged_count: int) -> Finding:
        shuffled = top.trial.facts.get("shuffle", "")
        metric, trial, n_others = Name(top.metric), Name(top.trial.name), len(trials) - 1
        share, steps = Percent(top.strongest_period.explained_share), Number(top.period_in_steps, 4, f"{study.unit}s")
        points, interval = Number(top.strongest_period.period, unit="evaluations"), study.length(top.evaluation_interval)
        return self.finding(
            say(
                "In {trial}, {metric} goes up and down with a period of {period}. {share} of its variation around the trend "
                "repeats.{others}{loader}",
                trial=say("the best trial, {trial}", trial=trial) if top.trial == study.ranked()[0] else trial,
                metric=metric,
                period=_period_message(steps, top),
                share=share,
                others=say(" {n} more of the {judged} trials judged have this period.", n=n_others, judged=judged_count)
                if n_others
                else "",
                loader=" The training loader does not shuffle." if shuffled == "false" else "",
            ),
            action=_ADVICE_BY_SHUFFLING.get(shuffled, _ADVICE_BY_SHUFFLING[""]),
            severity="warning" if top.periods_per_epoch else "note",
            confidence=(1 - top.p_value) * (1.0 if top.periods_per_epoch else 0.8),
            subject=top.metric,
            trials=trials,
            evidence=(
                curve_plot(top.metric, say("{metric} repeats every {period}.", metric=metric, period=steps), trials),
                table(
                    ("trials judged", say("{judged}; {alike} have this period", judged=judged_count, alike=len(trials))),
                    ("evaluations", say("{n} of {trial}, every {gap}", n=len(top.curve), trial=trial, gap=interval)),
                    ("period", say("{points}, {steps}", points=points, steps=steps)),
                    ("steps per epoch", Number(top.steps_per_epoch, 4) if top.steps_per_epoch > 0 else "unknown"),
                    ("share of the variation around the trend that repeats", share, self.material),
                    ("p-value, corrected for all frequencies and curves", Probability(top.p_value), self.false_alarms),
                ),
            ),
        )


def _period_message(steps: Number, top: CurvePeriod) -> Message:
    epoch = Number(top.steps_per_epoch, 4)
    if not top.periods_per_epoch:
        template = "{steps} (an epoch takes {epoch})"
        return say(template, steps=steps, epoch=epoch) if top.steps_per_epoch > 0 else say("{steps}", steps=steps)
    part = ("one epoch", "half an epoch", "a third of an epoch")[top.periods_per_epoch - 1]
    if abs(top.period_in_steps * top.periods_per_epoch / top.steps_per_epoch - 1) < 0.2:
        return say("{steps}, which is {part}", steps=steps, part=part)
    template = "{steps}, the apparent period of {part} of {epoch} steps at this evaluation interval"
    return say(template, steps=steps, part=part, epoch=epoch)

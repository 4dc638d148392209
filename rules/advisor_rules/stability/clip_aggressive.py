from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from advisor.computed.curves.good_trials import good_trials
from advisor.computed.stability import clipping, instability
from advisor.engine.rule import Relation, RuleOnGoodTrials, Share
from advisor.model.evidence import Evidence, curve_plot, table
from advisor.model.finding import Finding, MissingData
from advisor.model.message import Message, Name, Number, Percent, Probability, join_items, say
from advisor.model.optimizers import optimizer_name
from advisor.model.space import FloatArray, words_of_name
from advisor.model.study import Study, Trial
from advisor.stats import tails

_SCALE_INVARIANT_OPTIMIZERS = ("adam", "rmsprop", "adagrad", "adadelta", "adafactor", "lamb", "lion", "muon")
"""Optimizers whose steps do not change if all gradients are scaled by the same factor. A name that contains one of these words,
such as adamw or paged_lion_8bit, counts as this optimizer."""


class ClipAggressive(RuleOnGoodTrials):
    """More than half of the updates are clipped, so the best learning rate depends on the clipping threshold.

    ## What it looks at
    The rule computes the share of clipped updates over the whole training, from the training hook's count or from the logged
    gradient norms and the threshold. The rule examines the five best trials that achieved at least half of the best trial's
    improvement during training. More than half of the updates must be clipped in the best trial and in most of these trials.

    ## Why it matters
    Clipping is meant for outliers. If most updates are clipped, their length is the learning rate times the threshold whatever
    the gradient, so the best learning rate of the study is right only for this threshold. Adam and similar optimizers are the
    exception: they divide updates by the usual size of the gradients, so the threshold hardly affects their steps.

    ## What to do
    Raise the threshold so that typical norms are not clipped, and lower the learning rates so that the length of updates stays
    the same. Start with the 90th percentile of the norms before clipping as the threshold. If training is then unstable, lower
    the learning rate further or lengthen the warmup.

    ## How sure
    If every step is logged, the share of clipped updates is a count without error. If only some steps are logged, the excess of
    the share over one half must be significant in an exact binomial test over the logged points. Trials with Adam, Adafactor,
    Lion or similar optimizers do not count as clipped, because clipping hardly changes their steps; if all examined trials use
    such optimizers, the rule is not assessed. Confidence is one minus the p-value, times the share of the examined trials in
    which most updates are clipped. If exactly half of the updates were clipped, the rule fired in at most 4.5 % of simulated
    studies.
    """

    playbook = "Gradient clipping"
    goal = "stability"
    explains = Relation(
        rules=("space-insensitive", "space-boundary"),
        shares="rates",
        because="Most updates are as long as the learning rate times the clipping threshold, so the best learning rate "
        "depends on the threshold.",
    )

    most: Share = 0.5
    """Maximum acceptable share of clipped updates; from the playbook."""
    false_alarms: Share = 0.05
    """Maximum probability of a finding in a study in which the share of clipped updates is exactly the maximum in all
    trials."""

    def check(self, study: Study) -> Iterator[Finding]:
        good = good_trials(study, self.reach)[: self.best]
        judged = [c for t in good if (c := clipping.read_clipping(study, t)) is not None]
        if not judged:
            raise MissingData(
                f"no good trial recorded its clipping threshold and logged {tails.MIN_POINTS} gradient norms; log the norm before "
                "clipping at every step, as train/grad_norm, and the threshold as grad_clip_norm (the advisor's training hook "
                "does both)",
                needs="grad_norm",
            )
        sensitive = [c for c in judged if not _ignores_gradient_scale(c.trial)]
        if not sensitive:
            optimizer = optimizer_name(judged[0].trial.params, judged[0].trial.facts)
            reason = f"steps of {optimizer} do not depend on the scale of the gradients, so clipping hardly changes them"
            raise MissingData(reason)
        mostly_clipped = [c for c in sensitive if c.clipped_share > self.most and c.p_value(self.most) <= self.false_alarms]
        if judged[0] in mostly_clipped and 2 * len(mostly_clipped) > len(judged):
            yield self._build_finding(study, judged, mostly_clipped)

    def _build_finding(self, study: Study, judged: list[clipping.Clipping], mostly_clipped: list[clipping.Clipping]) -> Finding:
        first, norms = mostly_clipped[0], clipping.unclipped_gradient_norms(study)
        text = " Most updates are also clipped in {hard} of the {judged} best trials."
        others_text = say(text, hard=len(mostly_clipped), judged=len(judged))
        return self.finding(
            say(
                "{share} of the updates of {trial}, {best}, are clipped{at}.{others}",
                share=Percent(first.clipped_share),
                trial=Name(first.trial.name),
                best="the best trial" if first.trial == study.ranked()[0] else "the best trial that logged its clipping",
                at=say(" at a norm of {norm}", norm=Number(first.threshold)) if math.isfinite(first.threshold) else "",
                others=others_text if len(mostly_clipped) > 1 else "",
            ),
            action=_choose_action(norms),
            severity="warning",
            confidence=(1 - first.p_value(self.most)) * len(mostly_clipped) / len(judged),
            trials=[c.trial for c in mostly_clipped],
            evidence=self._evidence(study, judged, first),
            changes=instability.clipping_changes(norms, first.threshold),
        )

    def _evidence(self, study: Study, judged: list[clipping.Clipping], first: clipping.Clipping) -> tuple[Evidence, ...]:
        share, trial, max_share = Percent(first.clipped_share), Name(first.trial.name), Percent(self.most)
        p = say("{p} if {most} were clipped", p=Probability(first.p_value(self.most)), most=max_share)
        figures = table(
            ("share of clipped updates", join_items(Percent(c.clipped_share) for c in judged)),
            ("logged points", join_items(Number(c.point_count) for c in judged)),
            ("p-value of so large a share", p),
            ("thresholds", say("more than {most} clipped, p ≤ {p}", most=max_share, p=self.false_alarms)),
        )
        if not study.has("grad_norm") or not math.isfinite(first.threshold):
            return (figures,)
        caption = say("The gradient norm of {trial} exceeds its threshold in {share} of the updates.", trial=trial, share=share)
        lines = {"clipping threshold": first.threshold}
        return curve_plot(study.signals["grad_norm"], caption, [first.trial], lines=lines), figures


def _ignores_gradient_scale(trial: Trial) -> bool:
    name = "".join(words_of_name(optimizer_name(trial.params, trial.facts)))
    return any(optimizer in name for optimizer in _SCALE_INVARIANT_OPTIMIZERS)


def _choose_action(norms: FloatArray) -> Message:
    threshold_text = say("the 90th percentile of the best trials' norms before clipping, after the first tenth of training")
    if len(norms):
        threshold_text = say("{norm}, {percentile}", norm=Number(float(np.quantile(norms, 0.9))), percentile=threshold_text)
    text = (
        "Raise the clipping threshold to {to}{later}. Lower the learning rates in proportion, so that the length of updates "
        "stays the same."
    )
    return say(text, to=threshold_text, later="" if len(norms) else ", once the norms are logged")

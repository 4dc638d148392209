"""Implements the rule `ckpt-best-lost`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from advisor.computed.pipeline import checkpoints
from advisor.engine.rule import Count, Rule, Share
from advisor.model.change import Advise
from advisor.model.evidence import Mark, curve_plot, table
from advisor.model.finding import Finding, MissingData
from advisor.model.message import (
    Message,
    MessagePart,
    Name,
    Objective,
    Percent,
    Probability,
    list_message,
    say,
    value_with_limit,
)
from advisor.model.study import Study, Trial
from advisor.stats.curve import MIN_POINTS
from advisor_rules.pipeline._checkpoints import KeptModel, read_kept_model

_OWN_FOLDER_ADVICE = (
    "Write the checkpoints of each run to its own folder. In a command of `advisor run`, {run_id} is the id of the run: with the "
    "Transformers Trainer, add --output-dir trainer-output/{run_id}."
)
_OVERWRITTEN_CONFIDENCE = 0.95
"""Confidence that checkpoints under the same path on the same machine were overwritten. Overwriting is not certain, because
relative paths can belong to different working directories. Our choice."""
_PERHAPS_OVERWRITTEN_CONFIDENCE = 0.5
"""Confidence that checkpoints under the same path were overwritten if the machines are unknown. Our choice."""


class CkptBestLost(Rule):
    """The best step of the best trial is not kept in a checkpoint, or a worse checkpoint is used.

    ## What it looks at
    The rule evaluates the model that the best trial keeps: the chosen checkpoint, or the best of the kept checkpoints. If the
    run logged no checkpoints, the model at the last step counts as the kept model. The rule fires if the objective of the kept
    model is worse than the best level of the curve (the lowest median over a tenth of the curve) by more than noise. The single
    best value is not used, because the best of many noisy evaluations looks better than it is. The p-value is multiplied by the
    number of levels, and by the number of trials that are as good as the best one within noise. The finding also counts the
    next best trials, but the rule does not fire if the best trial keeps its best step. The rule also fires if a later trial on
    the same machine logged a checkpoint under the path of the best trial's best checkpoint.

    ## Why it matters
    The best model of a run is often not the last one, especially if validation drifts or rises late. Runs that write to one
    folder overwrite each other's checkpoints, including the best one. A study ranks trials by their best step. Without a
    checkpoint near the best step, the result can only be reproduced by training again.

    ## What to do
    Train for a fixed number of steps, keep the few best checkpoints, and choose among them after the run. Give each run its own
    folder.

    ## How sure
    Confidence is 1 minus the p-value. If the run logged no checkpoints, confidence is multiplied by 0.6 and the finding is a
    note, because the best step may have been saved anyway. A trial needs 6 evaluations. In simulations (200 or more studies per
    design, 1 to 12 trials with 12 to 200 evaluations) of curves that fall and flatten, the rule never fired up to a lag-1
    autocorrelation of 0.5, and fired in 4 % of studies at 0.8 and 2 % at 0.9. For simulated curves that never fall, the rule
    fired in 5 % of studies at an autocorrelation of 0.8, and in up to 20 % of single trials with fewer than 30 evaluations. For
    simulated curves that end above their best level by 10 and 20 times the noise, the rule fired in 25 and 95 % of studies with
    10 evaluations, and in all studies with 20 evaluations.
    """

    playbook = "Saving checkpoints and retrospectively selecting the best checkpoint"
    goal = "pipeline"
    needs_learning = True

    best: Count = 5
    """Maximum number of best trials to examine. Our choice."""
    material: Share = checkpoints.MIN_MATERIAL_RISE
    """Minimum rise of the kept model above the best level, as a share of the curve's range. Our choice."""
    false_alarms: Share = checkpoints.MAX_RISE_P_VALUE
    """Maximum share of studies in which chance alone raises a finding."""

    def check(self, study: Study) -> Iterator[Finding]:
        trials = study.ranked()[: self.best]
        if not trials:
            raise MissingData("no trial ended with a finite objective", needs="trials", at_least=1)
        path, later = checkpoints.find_overwriting_trials(study, trials[0])
        if later:
            yield self._report_overwritten(study, trials[0], path, later)
            return
        top = read_kept_model(study, trials[0])
        if top is None:
            raise MissingData(
                f"the best trial has fewer than {MIN_POINTS} evaluations of {study.spec.objective.metric} and logged no "
                "checkpoints; evaluate more often",
                needs="evaluations",
                at_least=MIN_POINTS,
            )
        rise = top.rise_from_best
        if rise is None or self._is_best_lost(top, checkpoints.count_equally_good_trials(study, top.trial, rise)):
            others = [r for t in trials[1:] if (r := read_kept_model(study, t)) is not None and self._is_best_lost(r)]
            yield self._build_finding(study, trials, top, [top, *others])

    def _report_overwritten(self, study: Study, trial: Trial, path: str, later: Sequence[Trial]) -> Finding:
        known = bool(checkpoints.launch_host(trial))
        return self.finding(
            say(
                "The best checkpoint of the best trial, {trial}, is lost{where}: {later} wrote to the same path, {path}.",
                trial=Name(trial.name),
                where="" if known else " if the trials ran in one folder of one machine",
                later=list_message([Name(t.name) for t in later]),
                path=path,
            ),
            action=_OWN_FOLDER_ADVICE,
            severity="warning" if known else "note",
            confidence=_OVERWRITTEN_CONFIDENCE if known else _PERHAPS_OVERWRITTEN_CONFIDENCE,
            subject=study.spec.objective.metric,
            trials=[trial, *later],
            evidence=table(("later trials with the same path", len(later))),
            changes=(Advise(text=_OWN_FOLDER_ADVICE),),
        )

    def _is_best_lost(self, kept_model: KeptModel, tests: int = 1) -> bool:
        return kept_model.p_value * tests <= self.false_alarms and kept_model.share >= self.material

    def _build_finding(self, study: Study, trials: list[Trial], top: KeptModel, lost_models: list[KeptModel]) -> Finding:
        metric = study.spec.objective.metric
        advice = "Keep the 3 best checkpoints of every run by the objective, and choose among them after the run has ended."
        return self.finding(
            _lost_model_message(study, top, len(lost_models), len(trials)),
            action=advice,
            severity="warning" if top.has_logged_checkpoints else "note",
            confidence=(1 - top.p_value) * (1.0 if top.has_logged_checkpoints else 0.6),
            subject=metric,
            trials=[r.trial for r in lost_models],
            evidence=(
                curve_plot(
                    metric,
                    _curve_caption(len(lost_models), len(trials)),
                    [r.trial for r in lost_models],
                    marks=tuple(m for r in lost_models for m in _curve_marks(r)),
                ),
                table(*self._evidence_rows(study, trials, top)),
            ),
            changes=(Advise(text=advice),),
        )

    def _evidence_rows(self, study: Study, trials: list[Trial], top: KeptModel) -> Iterator[tuple[str, MessagePart | float]]:
        yield "evaluations of the trial", len(top.cost_curve)
        if top.rise_from_best is not None:
            share, limit = Percent(top.share, 1), Percent(self.material)
            yield "rise above the best level", top.rise_from_best.height
            yield ("rise, share of the range of levels (medians over a tenth of the curve)", value_with_limit(share, limit))
            yield "standard error of the rise", top.rise_from_best.error
            p = value_with_limit(Probability(top.p_value), self.false_alarms)
            yield "p-value, corrected for the choice of the step", p
        if len(trials) > 1:
            lead = float(study.costs[trials[1].index]) - float(study.costs[trials[0].index])
            yield "lead of the best trial over the second", lead


def _lost_model_message(study: Study, top: KeptModel, lost_count: int, judged_count: int) -> Message:
    remains = say("kept no checkpoint")
    if top.rise_from_best is not None:
        value = Objective(study.objective_value(top.rise_from_best.level))
        remains = say("has {value} {source} ({step})", value=value, source=top.source_phrase, step=study.at(top.step))
    return say(
        "The best trial, {trial}, reached {metric} {best} at {step}, but {remains}.{unknown}{others}",
        trial=Name(top.trial.name),
        metric=Name(study.spec.objective.metric),
        best=Objective(study.objective_value(top.best)),
        step=study.at(top.best_step),
        remains=remains,
        unknown=""
        if top.has_logged_checkpoints
        else " The trial logged no checkpoints, so its best step is lost unless you saved it.",
        others=say(" In all, {lost} of the {judged} best trials lose their best step.", lost=lost_count, judged=judged_count)
        if judged_count > 1
        else "",
    )


def _curve_caption(lost: int, judged: int) -> Message:
    if judged == 1:
        return say("The trial does not keep its best step.")
    does = "does not keep its best step" if lost == 1 else "do not keep their best step"
    return say("{lost} of the {judged} best trials {does}.", lost=lost, judged=judged, does=does)


def _curve_marks(kept_model: KeptModel) -> Iterator[Mark]:
    yield Mark(trial=kept_model.trial.id, step=kept_model.best_step, label="best")
    if kept_model.rise_from_best is not None:
        yield Mark(trial=kept_model.trial.id, step=kept_model.step, label="kept")

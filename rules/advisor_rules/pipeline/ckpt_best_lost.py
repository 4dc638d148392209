from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from advisor.computed.pipeline import checkpoints
from advisor.engine.rule import Count, Rule, Share
from advisor.model.evidence import FigureEvidence, Mark, TableRow, curve_plot, table
from advisor.model.finding import Finding, MissingData
from advisor.model.message import Name, Objective, Percent, Probability, list_message, say
from advisor.model.study import Curve, Study, Trial
from advisor.stats.curve import MIN_POINTS, LevelRise, rise_at_point

_OVERWRITTEN_CONFIDENCE = 0.95
"""Confidence that checkpoints under the same path on the same machine were overwritten. Overwriting is not certain, because
relative paths can belong to different working directories. Our choice."""
_PERHAPS_OVERWRITTEN_CONFIDENCE = 0.5
"""Confidence that checkpoints under the same path were overwritten if the machines are unknown. Our choice."""


@dataclass(frozen=True, slots=True)
class _KeptModel:
    trial: Trial
    curve: Curve
    is_logged: bool
    source: str = ""
    index: int = -1
    rise: LevelRise | None = None
    """Rise of the cost from the best level of the curve to the kept model; None if no checkpoint was kept."""

    @property
    def p_value(self) -> float:
        return 0.0 if self.rise is None else self.rise.p_value

    @property
    def best_step(self) -> int:
        return int(self.curve.steps[int(np.argmin(self.curve.values))])

    @property
    def step(self) -> int:
        return int(self.curve.steps[self.index])


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
    folder overwrite each other's checkpoints, including the best one. A study ranks trials by the result at their best step.
    Without a checkpoint near this step, only a new training reproduces the result.

    ## What to do
    Train for a fixed number of steps, keep the few best checkpoints, and choose among them after the run. Give each run its own
    folder.

    ## How sure
    Confidence is 1 minus the p-value. If the run logged no checkpoints, confidence is multiplied by 0.6 and the finding is a
    note, because the best step may have been saved anyway. Only trials with 6 or more evaluations are judged. In simulations
    (200 or more studies per design, 1 to 12 trials with 12 to 200 evaluations) of curves that fall and flatten, the rule never
    fired up to a lag-1 autocorrelation of 0.5, and fired in 4 % of studies at 0.8 and 2 % at 0.9. For simulated curves that
    never fall, the rule fired in 5 % of studies at 0.8, and in up to 20 % of single trials with fewer than 30 evaluations. For
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
        model = _read_kept_model(study, trials[0])
        if model is None:
            reason = (
                f"the best trial has fewer than {MIN_POINTS} evaluations of {study.spec.objective.metric} and logged no "
                "checkpoints; evaluate more often"
            )
            raise MissingData(reason, needs="evaluations", at_least=MIN_POINTS)
        rise = model.rise
        if rise is None or self._is_best_lost(model, checkpoints.count_equally_good_trials(study, model.trial, rise)):
            other_models = [r for t in trials[1:] if (r := _read_kept_model(study, t)) is not None and self._is_best_lost(r)]
            yield self._build_finding(study, trials, [model, *other_models])

    def _report_overwritten(self, study: Study, trial: Trial, path: str, later_trials: list[Trial]) -> Finding:
        is_host_known = bool(checkpoints.launch_host(trial))
        text = "The best checkpoint of the best trial, {trial}, is lost{where}: {later} wrote to the same path, {path}."
        where = "" if is_host_known else " if the trials ran in one folder of one machine"
        return self.finding(
            say(text, trial=Name(trial.name), where=where, later=list_message([Name(t.name) for t in later_trials]), path=path),
            action="Write the checkpoints of each run to its own folder. In a command of `advisor run`, {run_id} is the id of "
            "the run: with the Transformers Trainer, add --output-dir trainer-output/{run_id}.",
            severity="warning" if is_host_known else "note",
            confidence=_OVERWRITTEN_CONFIDENCE if is_host_known else _PERHAPS_OVERWRITTEN_CONFIDENCE,
            subject=study.spec.objective.metric,
            trials=[trial, *later_trials],
            evidence=table(("later trials with the same path", len(later_trials))),
        )

    def _is_best_lost(self, model: _KeptModel, tests: int = 1) -> bool:
        return model.rise is None or (model.p_value * tests <= self.false_alarms and model.rise.share >= self.material)

    def _build_finding(self, study: Study, trials: list[Trial], models: list[_KeptModel]) -> Finding:
        top, n_trials, metric = models[0], len(trials), study.spec.objective.metric
        verb = "does not keep its best step" if len(models) == 1 else "do not keep their best step"
        caption = say("{lost} of the {judged} best trials {does}.", lost=len(models), judged=n_trials, does=verb)
        if n_trials == 1:
            caption = say("The trial does not keep its best step.")
        marks = []
        for model in models:
            marks.append(Mark(trial=model.trial.id, step=model.best_step, label="best"))
            if model.rise is not None:
                marks.append(Mark(trial=model.trial.id, step=model.step, label="kept"))
        others = say(" In all, {lost} of the {judged} best trials lose their best step.", lost=len(models), judged=n_trials)
        caveat = " The trial logged no checkpoints, so its best step is lost unless you saved it."
        kept_text = say("kept no checkpoint")
        if top.rise is not None:
            value = Objective(study.objective_value(top.rise.level))
            kept_text = say("has {value} {source} ({step})", value=value, source=top.source, step=study.at(top.step))
        return self.finding(
            say(
                "The best trial, {trial}, reached {metric} {best} at {step}, but {remains}.{unknown}{others}",
                trial=Name(top.trial.name),
                metric=Name(metric),
                best=Objective(study.objective_value(float(top.curve.values.min()))),
                step=study.at(top.best_step),
                remains=kept_text,
                unknown="" if top.is_logged else caveat,
                others=others if n_trials > 1 else "",
            ),
            action="Keep the 3 best checkpoints of every run by the objective, and choose among them after the run has ended.",
            severity="warning" if top.is_logged else "note",
            confidence=(1 - top.p_value) * (1.0 if top.is_logged else 0.6),
            subject=metric,
            trials=[r.trial for r in models],
            evidence=(
                curve_plot(metric, caption, [r.trial for r in models], marks=marks),
                self._evidence_table(study, trials, top),
            ),
        )

    def _evidence_table(self, study: Study, trials: list[Trial], model: _KeptModel) -> FigureEvidence:
        rise, rows = model.rise, list[TableRow]()
        if rise is not None:
            share_label = "rise, as a share of the range of levels (medians over a tenth of the curve)"
            rows += [
                ("rise above the best level", rise.height),
                (share_label, Percent(rise.share, 1), self.material),
                ("standard error of the rise", rise.error),
                ("p-value of the rise, corrected for the choice of the step", Probability(rise.p_value), self.false_alarms),
            ]
        if len(trials) > 1:
            lead = float(study.costs[trials[1].index]) - float(study.costs[trials[0].index])
            rows.append(("lead of the best trial over the second", lead))
        return table(("evaluations of the trial", len(model.curve)), *rows)


def _read_kept_model(study: Study, trial: Trial) -> _KeptModel | None:
    curve = study.cost_curve(trial).finite
    logged = checkpoints.logged_checkpoints(trial)
    if logged is None:
        index, source = len(curve) - 1, "at its last step"
    elif (best := checkpoints.best_checkpoint(study, trial)) is None:
        return _KeptModel(trial, curve, is_logged=True)
    else:
        index = checkpoints.evaluation_index(curve, best[0])
        source = "in its best checkpoint" if logged.chosen_step is None else "in the checkpoint that was chosen"
    rise = rise_at_point(curve.values, index)
    return None if rise is None else _KeptModel(trial, curve, logged is not None, source, index, rise)

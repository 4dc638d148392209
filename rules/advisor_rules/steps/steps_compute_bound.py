from __future__ import annotations

from collections.abc import Iterator, Sequence

from advisor.computed.curves import curve_tails
from advisor.computed.space import settings
from advisor.engine.rule import Count, Rule, Share
from advisor.model.change import Advise, RunPlan
from advisor.model.evidence import curve_plot, table
from advisor.model.finding import Finding, MissingData
from advisor.model.message import Message, Percent, join_items, say
from advisor.model.study import Study
from advisor.model.words import plain_number

_COMPUTE_BOUND_ADVICE = (
    "Tune with short runs and make the final runs longer. Runs of about a tenth of the final length answer most questions; then "
    "train a few of the best settings for as long as you can afford.",
    "Keep warmup and initialisation from the short runs. Check the architecture, the optimizer's hyperparameters and the "
    "regularisation again, and tune the learning-rate schedule anew for the long runs.",
)
_LONG_RUNS_PLAN = RunPlan(plan="rounds", why="Compute limits the training, so a few long runs follow the short runs")
_NOT_COMPUTE_BOUND_ADVICE = (
    "Fix one max_train_steps for all trials, with enough steps to reach the best step of each trial and not many more. "
    "Change max_train_steps between studies, never within one.",
    "Spend compute on more trials instead of longer ones, and on regularisation if the training data are fitted perfectly.",
    "Look at the number of steps again after you change regularisation, augmentation or the model: a harder fit or noisier "
    "gradients need more steps.",
)


class StepsComputeBound(Rule):
    """The best trials show if compute limits the training, which decides how to choose the training length.

    ## What it looks at
    The rule examines the last steps at a constant learning rate in the best few trials, as the rule `curve-still-improving`
    does. Training is *compute-bound* if, in most of these trials, the objective still improves (by the test of
    `curve-still-improving`), and the cost on the training data, if logged, also improves and is not yet near its minimum.
    Training is *not compute-bound* if, in most of these trials, the objective is flat (by the test of `curve-saturated`), and
    the cost on the training data is flat or near its minimum. If most trials satisfy neither condition, the rule does not fire.

    ## Why it matters
    If compute is the limit, longer training is better, and tuning uses shorter runs than the final one. Otherwise, a fixed and
    sufficient number of steps makes tuning easier, and additional trials help more than longer ones.

    ## What to do
    If training is compute-bound, choose settings with short runs, then finish with a few long runs, and tune the schedule again
    for the long runs. The advisor writes the study of long runs if the study file states their length (`final_train_steps`). If
    training is not compute-bound, use one sufficient `max_train_steps` for all trials, refined by the position of the best
    steps (`step-position`).

    ## How sure
    Confidence is the share of the best trials that agree, multiplied by the probability that their forecasts exceed the
    threshold (if compute-bound) or by 0.95 (if not). In simulated studies, the rule called training compute-bound in at most 3
    % of studies with flat curves, and not compute-bound in at most 0.5 % of studies whose curves fall to the end.
    """

    playbook = "Determining the number of steps for each training run"
    goal = "steps"
    needs_learning = True
    compares_results = True

    best: Count = 3
    """Maximum number of best trials to examine."""
    reach: Share = 0.1
    """Maximum difference in the objective between an examined trial and the best trial, as a share of the best trial's
    improvement during training."""
    material: Share = 0.01
    """Minimum improvement in the forecast of a curve that counts as still improving, as a share of the run's whole
    improvement."""
    rest: Share = 0.05
    """Maximum improvement that a flat part of a curve may hide (95 % bound), as a share of the run's whole improvement; on
    training data, twice this share is allowed."""
    saved: Share = 0.25
    """Minimum share of the steps that a flat curve could have saved."""
    floor: Share = 0.01
    """Maximum final distance from a perfect score on the training data, as a share of the initial distance, that counts as a
    perfect fit."""
    false_alarms: Share = 0.05
    """Significance level of each trial's test; most trials must be significant."""

    def check(self, study: Study) -> Iterator[Finding]:
        judged_endings = curve_tails.best_curve_endings(study, self.best, self.reach)
        improving_endings = [e for e in judged_endings if self._still_improves(e)]
        limits = {"rest": self.rest, "saved": self.saved, "material": self.material, "alpha": self.false_alarms}
        flat_endings = [e for e in judged_endings if e.has_saturated(floor=self.floor, **limits)]
        if 2 * len(improving_endings) > len(judged_endings):
            confidence = sum(e.end.chance_above(self.material) for e in improving_endings) / len(judged_endings)
            improve = "improves" if len(improving_endings) == 1 else "improve"
            training = ", on training data too" if any(e.train_end for e in improving_endings) else ""
            place = study.at(improving_endings[0].last_constant_rate_step)
            predicate = say(f"still {improve} at {{place}}{training}", place=place)
            yield self._report_compute_limit(study, True, predicate, judged_endings, improving_endings, confidence)
        elif 2 * len(flat_endings) > len(judged_endings):
            settings.require_unpruned(study)
            if curve_tails.are_on_one_plateau(study, flat_endings):
                level = study.objective_value(float(study.costs[flat_endings[0].trial.index]))
                raise MissingData(
                    f"different settings stop at the same {study.spec.objective.metric}, {plain_number(level, 4)}, at once: "
                    "if they are stuck on a plateau, they do not show whether compute limits the training; run trials that learn"
                )
            perfect = sum(e.train_distance_left <= self.floor for e in flat_endings)
            fits = say(", and {fitted} of them fit the training data nearly perfectly", fitted=perfect)
            verb, share = "is" if len(flat_endings) == 1 else "are", Percent(max(map(_flat_start_share, flat_endings)))
            predicate = say(f"{verb} flat from {{share}} of the steps on{{fits}}", share=share, fits=fits if perfect else "")
            confidence = 0.95 * len(flat_endings) / len(judged_endings)
            yield self._report_compute_limit(study, False, predicate, judged_endings, flat_endings, confidence)

    def _still_improves(self, tail: curve_tails.CurveEnding) -> bool:
        train = tail.train_end is None or tail.train_end.is_improving(self.material, self.false_alarms)
        return train and not tail.train_distance_left <= self.floor and tail.end.is_improving(self.material, self.false_alarms)

    def _report_compute_limit(
        self,
        study: Study,
        is_bound: bool,
        predicate: Message,
        judged: Sequence[curve_tails.CurveEnding],
        agreeing: Sequence[curve_tails.CurveEnding],
        confidence: float,
    ) -> Finding:
        n, n_judged, trials = len(agreeing), len(judged), [e.trial for e in agreeing]
        advice = _COMPUTE_BOUND_ADVICE if is_bound else _NOT_COMPUTE_BOUND_ADVICE
        # Until the study states the final length of training, the plan asks for this length, so further advice about long runs
        # would be too early.
        notes = advice if not is_bound or study.spec.final_train_steps else ()
        text = "forecast gain above {forecast}; gain in a flat part up to {rest}; distance from a perfect fit up to {floor}"
        limits = say(text, forecast=Percent(self.material), rest=Percent(self.rest), floor=Percent(self.floor))
        end_text, flat_from = (
            "still improve" if is_bound else "are flat",
            join_items(Percent(_flat_start_share(e)) for e in judged),
        )
        caption = say(f"{{many}} of {{of}} best trials {end_text} at their end.", many=n, of=n_judged)
        who = say("{many} of the best {of} trials", many=n, of=n_judged) if n_judged > 1 else "the best trial"
        return self.finding(
            say(f"Training is {'' if is_bound else 'not '}compute-bound: {{agree}} {{what}}.", agree=who, what=predicate),
            action=advice[0],
            severity="note",
            confidence=confidence,
            trials=trials,
            evidence=(
                curve_plot(study.spec.objective.metric, caption, trials),
                table(
                    ("forecast gain of twice the steps", join_items(Percent(e.end.forecast_gain, 1) for e in judged)),
                    ("step from which the curve is flat, as a share of the steps", flat_from),
                    ("distance from a perfect fit", join_items(Percent(e.train_distance_left, 1) for e in judged)),
                    ("thresholds", limits),
                ),
            ),
            changes=(*([_LONG_RUNS_PLAN] if is_bound else []), *(Advise(text=text) for text in notes)),
        )


def _flat_start_share(ending: curve_tails.CurveEnding) -> float:
    return ending.plateau.settled_share * ending.last_constant_rate_step / ending.steps

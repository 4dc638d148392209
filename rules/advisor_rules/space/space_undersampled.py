from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from advisor.computed.curves import noise
from advisor.computed.pipeline import validation
from advisor.computed.space import rerun, sampler, settings
from advisor.engine.rule import Count, Relation, Rule, Share
from advisor.model.change import Advise, SetField
from advisor.model.evidence import FigureEvidence, table
from advisor.model.finding import Finding, MissingData, require_searched_hyperparameters
from advisor.model.message import Message, Name, Number, Objective, Percent, say
from advisor.model.optimizers import TRIALS_FOR_RATE_ONLY
from advisor.model.space import FloatArray
from advisor.model.study import Study
from advisor_rules.space import _pure_noise, _rows
from advisor_rules.space._halving import HalvingLoss, expected_best, loss_of_halving

SMALLER_SPACE_ADVICE = "Search fewer hyperparameters or narrower ranges if you cannot afford more trials."


class SpaceUndersampled(Rule):
    """Too few trials lie in the good region, so another sample from the same space would have another best result.

    ## What it looks at
    First, the rule computes the expected best result of a random half of the trials, and compares it with the best of all
    trials; the difference is the loss from halving. The loss from halving is computed exactly from the ranks of the trials. If
    the loss from halving exceeds both the variation between seeds and a tenth of the difference within the best third of the
    trials, the last doubling of the trials still improved the best result. Second, the rule predicts the gain from twice as
    many trials, from draws of a response that is fitted to all results, with its noise. The rule fires if the predicted gain
    matters with a probability of at least 5 % (50 % if the trials form a grid). If the trials form a grid, whose halves are not
    samples of the space, only the fitted response counts. Failed trials count as the worst; repeats of a setting count once.

    ## Why it matters
    If no other trial is nearly as good as the best one, the best trial may be good by chance, and the optimum of the space may
    be much better. Two studies with few trials near the optimum disagree, and a comparison of their results depends on luck.

    ## What to do
    Sample twice as many trials from the same space, and keep doubling the number of trials until another doubling is expected
    to gain little. Alternatively, search fewer hyperparameters or narrower ranges with equally many trials.

    ## How sure
    Confidence is the probability that twice as many trials gain more than the threshold and more than the noise of a result.
    Often the best trial is lucky, and more trials gain nothing; if confidence is below 50 %, the plan does not apply the
    advice. In 150 simulated studies of 8 to 40 random trials, the probabilities were calibrated (Brier score 0.13). In 3 % of
    studies, confidence was above 50 % although twice as many trials gained less than noise. If all settings are equally good,
    the best result is only luck. The rule therefore fires in studies without repeats only if results depend on a hyperparameter
    or vary more than plausible noise. If settings were equally good and varied by 5 % between seeds, the rule fired in 3 % of
    420 simulated studies. If the sampler used earlier results, confidence is lower.
    """

    playbook = "How many trials are needed to get good results with quasi-random search?"
    goal = "sampling"
    needs_order = True
    needs_learning = True
    before_exploitation = "quiet"
    explains = Relation(
        rules=("space-insensitive",),
        because="Too few trials lie in the good region to show which hyperparameters matter there.",
    )

    little: Share = 0.1
    """Maximum acceptable loss from halving the trials, as a share of the difference between the results of their best third. On
    windows of dense grids, this limit separated studies without a setting near the optimum from studies with eight or more such
    settings."""
    little_of_all: Share = 0.02
    """Maximum acceptable loss from halving the trials, as a share of the best trial's lead over the median, if the best third
    of the trials hardly differ."""
    seed_noise: Share = 0.05
    """Maximum plausible standard deviation between seeds if it was not measured, as a share of the result. This limit is one
    and a half times the largest standard deviation in the better half of 278 repeated settings."""
    enough_for_one: Count = TRIALS_FOR_RATE_ONLY
    """Number of trials that always suffices for one hyperparameter; the tuning playbook uses fewer trials to tune only a
    learning rate."""
    certainty: Share = 0.9
    """Minimum probability that halving the trials loses more than the acceptable loss."""
    false_alarms: Share = 0.05
    """Maximum share of studies with equally good settings in which chance alone raises a finding."""
    possible: Share = 0.05
    """Minimum probability that the gain from twice as many trials matters; this probability is the confidence of the
    finding."""

    def check(self, study: Study) -> Iterator[Finding]:
        tried = settings.read_settings(study)
        require_searched_hyperparameters(study)
        tried.require_settings(5, 3)
        if len(study.searched) == 1 and len(tried) >= self.enough_for_one:
            return
        halving, (seed_noise, is_noise_known) = loss_of_halving(tried.costs), noise.noise_between_seeds(study)
        limit = max(self._acceptable_loss(tried), seed_noise, 0.0 if is_noise_known else noise.noise_between_evaluations(study))
        on_grid = rerun.is_full_grid(tried)
        if validation.distance_to_perfect_score(study) <= 0:
            return
        if not math.isfinite(limit) or not (on_grid or halving.chance_above(limit) >= self.certainty):
            return
        if not is_noise_known and _pure_noise.p_of_pure_noise(tried, self.seed_noise) > self.false_alarms:
            raise MissingData(
                f"all differences between {len(tried)} settings may be noise, so they do not show what more trials would gain; "
                "repeat the best setting with other seeds",
                needs="repeats",
            )
        more_results = rerun.further_results(study)
        # Gains shrink with each doubling, so the next one gains at most the upper bound of the gain from the last one.
        gains = np.minimum(more_results.gains, min(validation.distance_to_perfect_score(study), halving.interval(0.95)[1]))
        probability = float(np.mean(gains > (limit if is_noise_known else np.maximum(limit, more_results.noise_sd))))
        if probability >= (0.5 if on_grid else self.possible):
            finding = self._build_finding(study, tried, halving, limit, gains, probability, known=is_noise_known)
            yield sampler.weaken_if_adaptive(study, finding)

    def _acceptable_loss(self, tried: settings.Settings) -> float:
        ordered = np.sort(tried.costs)  # NaN costs come last in the order.
        third, half = (min(int(share * (len(ordered) - 1)), tried.result_count - 1) for share in (1 / 3, 1 / 2))
        with np.errstate(over="ignore"):
            return float(max(self.little * (ordered[third] - ordered[0]), self.little_of_all * (ordered[half] - ordered[0])))

    def _build_finding(
        self,
        study: Study,
        tried: settings.Settings,
        halving: HalvingLoss,
        limit: float,
        gains: FloatArray,
        matters: float,
        *,
        known: bool,
    ) -> Finding:
        """gains: simulated gains from twice as many trials; matters: probability that the gain matters; known: the limit
        includes the noise between seeds."""
        n, count, best = len(tried), len(study.searched), float(np.nanmin(tried.costs))
        near_best = np.flatnonzero(tried.costs <= best + halving.expected_loss)
        gain_text = _expected_improvement(study, gains, limit, matters, known=known)
        condition = "" if matters >= 0.5 else " only if this probability is worth the cost of the trials"
        other_advice = ", or search fewer hyperparameters" if count > 1 else ""
        text = (
            "{amount}. With half of the {n} trials, the best result would be {loss} worse on average. {near} within this "
            "distance of the best result, {best}: too few for the good region of {axes}."
        )
        loss = halving.expected_loss
        near = say("Only {near} trials lie", near=len(near_best)) if len(near_best) > 1 else "Only the best trial lies"
        axes = say("{count} hyperparameters", count=count) if count > 1 else Name(next(iter(study.searched)))
        return self.finding(
            say(text, amount=gain_text, n=n, loss=loss, near=near, best=Objective(study.objective_value(best)), axes=axes),
            action=say(f"Run {{trials}} trials in the next study{condition}{other_advice}.", trials=2 * n),
            severity="note",
            confidence=matters,
            trials=[t for i in near_best for t in tried.trials[i][:1]],
            evidence=self._evidence_table(study, tried, halving, limit, float(gains.mean()), matters),
            changes=(
                SetField(field="trials", value=2 * n, why=str(gain_text)),
                *([Advise(text=SMALLER_SPACE_ADVICE)] if count > 1 else []),
            ),
        )

    def _evidence_table(
        self, study: Study, tried: settings.Settings, halving: HalvingLoss, limit: float, mean_gain: float, matters: float
    ) -> FigureEvidence:
        n, (low, high) = len(tried), halving.interval(0.95)
        means = {k: study.objective_value(expected_best(tried.costs, k)) for k in (n // 4, n // 2, n) if k}
        return table(
            _rows.tried_settings_row(tried),
            *((f"expected best result of {k} trials", Objective(v)) for k, v in means.items()),
            ("expected loss with half of the trials", halving.expected_loss, limit),
            ("80 % interval of the loss", say("{low} to {high}", low=low, high=high)),
            ("expected gain from another doubling of the trials", Number(mean_gain, 2), Number(limit, 2)),
            ("probability of a gain that matters", Percent(matters)),
        )


def _expected_improvement(study: Study, gains: FloatArray, limit: float, matters: float, *, known: bool) -> Message:
    low, mean, high = (Number(float(x), 2) for x in (np.quantile(gains, 0.1), gains.mean(), np.quantile(gains, 0.9)))
    gain = say("at most about {high}", high=high)
    # If the three values are not in this order, only an upper bound of the gain is known.
    if low.value < mean.value < high.value:
        gain = say("about {mean} (80 % interval {low} to {high})", mean=mean, low=low, high=high)
    text = (
        "Twice as many trials would improve the best {metric} by {gain}. The probability that they gain more than "
        "{limit}{noise} is {sure}"
    )
    metric, noise = Name(study.spec.objective.metric), "" if known else " and more than the noise of the fit"
    return say(text, metric=metric, gain=gain, limit=Number(limit, 2), noise=noise, sure=Percent(matters))

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from advisor.computed.decision import repeats
from advisor.computed.space import sampler
from advisor.engine.rule import Count, Relation, Rule, Share
from advisor.model.change import Advise, RunPlan
from advisor.model.evidence import table
from advisor.model.finding import Finding, MissingData
from advisor.model.message import Number, Objective, Probability, say
from advisor.model.study import Study
from advisor.model.words import count
from advisor.stats import best_of, difference

STOP_TUNING_ADVICE = (
    "Stop tuning in this space. Take the best setting, or the simplest of the equally good ones, evaluate it on {data} once "
    "and deploy it; or change the question: another architecture, more steps, more data, a hyperparameter that was fixed."
)


class TuningSaturated(Rule):
    """Further tuning in this search space no longer pays: the expected gain from more trials is smaller than the noise.

    ## What it looks at
    The rule counts the settings that are indistinguishable from the best result, given the variation between seeds. If the best
    of a random half of the trials is nearly always within noise of the best of all, doubling the number of trials would rarely
    gain more than noise. Moreover, the later half of the trials, or the last study if the trials belong to several, must not
    have gained more than noise.

    ## Why it matters
    Another trial can always turn out better than the best one. Once the expected gain of another trial is smaller than the
    variation between seeds, the time is better spent on another question.

    ## What to do
    Run one last adaptive search around the good trials, then stop tuning these hyperparameters in this space. Take the best
    setting, or an equally good one that is simpler or cheaper, evaluate it on the test set once, and deploy it. You can also
    change the question: another architecture, more data, more steps, a hyperparameter that was fixed.

    ## How sure
    Trials in random or quasi-random order are exchangeable, so the order of the results carries no information. The probability
    that doubling the trials gains more than noise is therefore at most about the probability that all k settings within noise
    of the best lie in the same half: 1 in 2 to the power of k. The rule never fires if a single setting leads all others by
    more than noise. A difference from the best setting counts as noise if one more run of the best setting could differ as much
    by chance. On simulated smooth responses of 1 to 6 hyperparameters with 10 to 50 trials, the rule fired wrongly in 0 to 5 %
    of studies. If the sampler used earlier results, trials always cluster around the best, so the finding has a lower
    confidence.
    """

    playbook = "After exploration concludes"
    goal = "exploitation"
    needs_order = True
    needs_learning = True
    explains = Relation(rules=("adopt",), because="Many settings are as good as the best one, so none of them leads.")

    fewest: Count = 10
    """Minimum number of settings with a result; the tuning playbook spends as many on tuning only a learning rate."""
    false_alarms: Share = 0.05
    """Maximum probability that doubling the trials gains more than noise; also the one-sided significance level at which a
    difference exceeds noise."""

    def check(self, study: Study) -> Iterator[Finding]:
        tuned = repeats.full_length_settings(study)
        variance = repeats.variance_between_seeds(tuned)
        if len(tuned) < self.fewest or not study.searched:
            repeat_too = "; also repeat the best one with other seeds" if variance is None else ""
            reason = (
                f"{count(len(tuned), 'setting')} ended with a result; at least {self.fewest} are needed to estimate further "
                f"gains{repeat_too}"
            )
            raise MissingData(reason, needs="other" if variance is None else "trials", at_least=self.fewest)
        if variance is None:
            raise MissingData(
                "no setting was run with two seeds or folds, so the variation between seeds is unknown; repeat the best trial",
                needs="repeats",
            )
        # The best setting is the repeated setting with the best mean, because the best of many single runs is probably lucky.
        best = min((s for s in tuned if len(s.costs) > 1), key=lambda s: s.mean)
        costs = np.array([s.mean for s in tuned])
        noise_band = difference.max_insignificant_difference(variance, len(best.costs), self.false_alarms)
        if costs.min() < best.mean - noise_band:
            return
        studies = [s.trials[0].facts.get("study") for s in tuned]
        has_studies = len(set(studies)) > 1
        recent = np.array([r == studies[-1] for r in studies]) if has_studies else np.arange(len(tuned)) >= len(tuned) // 2
        first_costs = np.array([s.costs[0] for s in tuned])
        compared_costs = costs[recent] if has_studies else costs
        early_costs, late_costs = first_costs[~recent], first_costs[recent]
        gain = max(float(early_costs.min() - late_costs.min()), 0.0) if len(early_costs) and len(late_costs) else 0.0
        n_as_good = int(np.sum(compared_costs <= best.mean + noise_band))
        chance = best_of.chance_of_drawing_no_target(len(compared_costs), math.ceil(len(compared_costs) / 2), n_as_good)
        if gain <= variance[0] and chance <= self.false_alarms and len(compared_costs) >= self.fewest:
            yield sampler.weaken_if_adaptive(
                study,
                self._build_finding(study, best, variance[0], (n_as_good, len(compared_costs), len(late_costs)), gain, chance),
            )

    def _build_finding(
        self, study: Study, best: repeats.Setting, sd: float, counts: tuple[int, int, int], gain: float, chance: float
    ) -> Finding:
        """counts: numbers of settings within noise of the best one, compared, and recent."""
        noun, data = repeats.noun(repeats.full_length_settings(study)), study.spec.objective.final_data
        n_as_good, n_compared, n_recent = counts
        label, value = f"standard deviation between {noun}s", Objective(study.objective_value(best.mean))
        text = f"{{alike}} of {{pool}} settings differ from the best one, {{best}}, by no more than noise ({label}: {{sd}}). "
        text += "The last {recent} settings gained no more than noise. As many trials again would hardly improve the result."
        return self.finding(
            say(text, alike=n_as_good, pool=n_compared, best=value, sd=Number(sd, 2), recent=n_recent),
            action=f"Make one last search around the good trials, then evaluate the best setting on {data} once and deploy it.",
            severity="note",
            confidence=1 - chance,
            trials=best.trials[:1],
            evidence=table(
                ("settings", n_compared),
                ("settings as good as the best", n_as_good),
                (label, sd),
                ("gain of the later trials over the earlier ones", gain),
                ("probability that as many new trials gain more than noise", Probability(chance), self.false_alarms),
            ),
            changes=(
                RunPlan(plan="exploit", why="Further tuning no longer pays: one last search around the good trials"),
                Advise(text=STOP_TUNING_ADVICE.format(data=data)),
            ),
        )

from __future__ import annotations

from collections.abc import Iterator

from advisor.computed.space import sampler
from advisor.engine.rule import Rule, Share
from advisor.model.evidence import table
from advisor.model.finding import Finding, MissingData
from advisor.model.message import Probability, say
from advisor.model.study import Study

QUASI_RANDOM_ADVICE = "Use random or quasi-random search while you explore, and adaptive search only in the final study."


class AdaptiveSearch(Rule):
    """Earlier results determined where later trials were drawn, which makes a study harder to learn from.

    ## What it looks at
    The rule measures the distances of later trials from good earlier trials. The rule fires if later trials lie nearer to good
    earlier trials than chance explains, as is usual with TPE and other Bayesian optimisation. The rule is quiet if the study
    file asks for adaptive search.

    ## Why it matters
    Adaptive search concentrates on settings that looked good early. All other settings get few trials, so the study shows
    little about the ends of ranges, the importance of hyperparameters or the better value of a comparison. Findings about the
    ends of ranges, the importance of hyperparameters or compared values have a lower confidence after adaptive search.

    ## What to do
    While you explore, draw trials from a quasi-random sequence or at random. Each trial of a quasi-random sequence informs
    about every hyperparameter, and trials can run in parallel. Use adaptive search at the end, in a space that is known to be
    good.

    ## How sure
    The p-value is from a permutation test of the trials' order. Confidence is one minus the p-value.
    """

    playbook = "Why use quasi-random search instead of more sophisticated black box optimization algorithms?"
    goal = "efficiency"

    false_alarms: Share = 0.05
    """Maximum probability, per study, that the rule calls a sampler adaptive although the sampler ignores results."""

    def check(self, study: Study) -> Iterator[Finding]:
        if study.spec.sampler.kind == "adaptive":
            raise MissingData("the study file declares an adaptive sampler", needs="design")
        p = sampler.p_value_of_adaptivity(study)
        if p is None:
            reason = "at least 10 ended trials and a varied hyperparameter are needed to see how trials were drawn"
            raise MissingData(reason, needs="trials", at_least=10)
        if p <= self.false_alarms:
            yield self.finding(
                say("Later trials lie near good earlier trials, so other regions have few trials (p = {p}).", p=Probability(p)),
                action=QUASI_RANDOM_ADVICE,
                severity="note",
                confidence=1 - p,
                evidence=table(
                    ("probability that trials lie so close to good ones by chance", Probability(p), self.false_alarms)
                ),
            )

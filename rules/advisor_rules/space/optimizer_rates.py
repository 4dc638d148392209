from __future__ import annotations

from collections.abc import Iterator

from advisor.engine.rule import Relation, Rule
from advisor.model import optimizers, parameter_kinds
from advisor.model.change import RunPlan
from advisor.model.evidence import axis_plot
from advisor.model.finding import Finding, MissingData, require_searched_hyperparameters
from advisor.model.message import Name, Setting, list_message, say
from advisor.model.study import Study


class OptimizerRates(Rule):
    """Optimizers whose usual learning rates differ by orders of magnitude are searched in one range of learning rates.

    ## What it looks at
    The rule reads the searched choice of optimizer, and checks whether one learning rate is searched for all optimizers. The
    rule does not report optimizers with separate learning rates, such as `sgd_lr` and `adam_lr`, or variants with the same
    usual rates, such as Adam and AdamW.

    ## Why it matters
    The same learning rate or momentum has different effects with different optimizers: a good rate for SGD is about a hundred
    times a good rate for Adam. A common range of learning rates suits only one optimizer. The others lose because the range
    does not suit them, or waste trials at learning rates at which they cannot train.

    ## What to do
    Run one study for each optimizer, each with hyperparameters and ranges of its own, and all with equally many trials. Then
    compare the best trials of these studies.

    ## How sure
    Confidence is 1, because the rule only reads names and estimates nothing.
    """

    playbook = "Identifying scientific, nuisance, and fixed hyperparameters"
    goal = "sampling"
    explains = (
        Relation(
            rules=(
                "space-boundary",
                "space-infeasible",
                "space-insensitive",
                "space-interaction",
                "space-shrink",
                "space-undersampled",
            ),
            because="Optimizers that need different learning rates share one range.",
        ),
        Relation(
            rules=("scientific-effect", "unfair-comparison"),
            shares="subject",
            because="Optimizers that need different learning rates were compared in one range.",
        ),
    )

    def check(self, study: Study) -> Iterator[Finding]:
        require_searched_hyperparameters(study)
        if not any(parameter_kinds.chooses_optimizer(name) for name in study.spec.parameters):
            raise MissingData("no hyperparameter chooses the optimizer", needs="design")
        shared_rate = optimizers.shared_learning_rate(study.spec)
        if shared_rate is None or study.probe is not None:
            return
        chooser, rate = shared_rate
        values = list_message([say("{value}", value=Setting(v)) for v in study.spec.parameters[chooser].options])
        why = say("{values} share one range of {rate}", values=values, rate=Name(rate))
        yield self.finding(
            say("{why}, although their usual learning rates differ.", why=why),
            action=say("Tune each {name} in a separate study, with its own ranges.", name=Name(chooser)),
            severity="warning",
            confidence=1.0,
            subject=chooser,
            evidence=(axis_plot(rate, say("All optimizers share the range of {rate}.", rate=Name(rate))),),
            changes=(RunPlan(plan="per-optimizer", parameter=chooser, why=str(why)),),
        )

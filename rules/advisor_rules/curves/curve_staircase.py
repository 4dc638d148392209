"""Implements the rule `curve-staircase`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from advisor.engine.rule import Count, Grounds, Relation, Rule, Share
from advisor.model.change import Advise
from advisor.model.evidence import Mark, curve_plot, table
from advisor.model.finding import Finding, MissingData, MissingDataKind
from advisor.model.message import Count as Counted, Number, Percent, Probability, join_items, say
from advisor.model.study import Study
from advisor.model.words import number
from advisor_rules.curves import _staircase

_MEMORISATION_ADVICE = (
    "Judge trials by validation data only, and try fewer epochs, more data or more regularisation: from the second epoch on, the "
    "training loss measures memorisation."
)


class CurveStaircase(Rule):
    """The training loss falls in steps at the starts of epochs, so the model memorises single examples.

    ## What it looks at
    The rule reads the training loss of batches in the five best trials, if an epoch is known to have 20 steps or more. At each
    start of an epoch, the rule measures how far the mean loss falls from the last 15 % of the old epoch to the first 15 % of
    the new one. From the fall at the start of an epoch, the rule subtracts the fall in the middle of the epochs before and
    after it, measured in the same way. The difference between the two falls is divided by the loss just before the start of the
    epoch, because falls shrink with the loss. Three other causes make the loss fall at the starts of epochs, and trials with
    these causes are left out: a learning rate that changes at the starts of epochs, a loader without shuffling, and losses that
    are the mean of the epoch so far.

    ## Why it matters
    With shuffled data, only one thing changes at the start of an epoch: the model has seen each example once more. If the loss
    falls at once at the start of an epoch, the model remembers single examples after one pass. The training loss of a model
    that memorises examples says little about new data. The training loss of language models that are fine-tuned for several
    epochs often falls at the starts of epochs.

    ## What to do
    Compare trials by validation data only. If the validation loss rises, train for fewer epochs, use more data, lower the
    learning rate or regularise. If the validation loss still falls, the staircase itself does no harm.

    ## How sure
    The one-sided test (a t-test over all starts of epochs of the best trials) is conservative, because a curve that flattens
    falls less at the start of an epoch than on average around it. In simulated curves with white, heavy-tailed or
    autocorrelated noise the rule fired in 1 to 2 % of studies. On recorded trainings with seeds not used in development
    (`python benchmarks/quality/lm_rules.py`), the rule fired in 18 of 20 studies of models that can memorise and in none of 50
    studies of models that do not. The models of the two missed studies memorise only in part, as do those of the one missed
    study among ten other studies (seeds 301 to 310). The confidence that the model memorises examples is 0.95. The finding is a
    note, because only the validation loss shows whether memorising does harm.
    """

    playbook = "Examining the training curves"
    grounds = Grounds(finding="test", advice="mechanism", source="practice")
    goal = "regularisation"
    explains = Relation(
        rules=("curve-overfitting",), shares="trials", because="The model memorises examples that it sees again.", waits=False
    )

    best: Count = 5
    """Maximum number of best trials to examine."""
    material: Share = 0.05
    """Minimum mean fall at the start of an epoch, beyond the fall within epochs, as a share of the loss just before the start.
    Our choice."""
    false_alarms: Share = 0.02
    """Maximum p-value, and so the maximum share of studies in which noise alone raises a finding."""

    def check(self, study: Study) -> Iterator[Finding]:
        stairs = [s for t in study.ranked()[: self.best] if (s := _staircase.measure_epoch_falls(study, t)) is not None]
        if not stairs:
            raise MissingData(
                "no good trial shows two starts of epochs in its training loss; log the loss of each batch, and give the training "
                "loader to the advisor's training hook, so that the length of an epoch is known",
                needs=_kind_of_missing_data(study),
            )
        p, excess = _staircase.p_value(stairs), float(np.mean(np.concatenate([s.relative_excess for s in stairs])))
        if p <= self.false_alarms and excess >= self.material:
            yield self._build_finding(study, stairs, p, excess)

    def _build_finding(self, study: Study, stairs: list[_staircase.EpochFalls], p: float, excess: float) -> Finding:
        metric = study.signals["train_loss"]
        return self.finding(
            say(
                "The training loss falls at once by {share} at the start of an epoch, on average over {n} epochs of {trials}, so "
                "the model memorises examples.",
                share=Percent(excess),
                n=sum(len(s.excess_falls) for s in stairs),
                trials=Counted(len(stairs), "good trial"),
            ),
            action=_MEMORISATION_ADVICE,
            severity="note",
            confidence=0.95 * (1 - p),
            subject=metric,
            trials=[s.trial for s in stairs],
            evidence=(
                curve_plot(
                    metric,
                    "The training loss falls in steps at the starts of epochs.",
                    [s.trial for s in stairs],
                    marks=tuple(Mark(trial=s.trial.id, step=round(s.steps_per_epoch), label="second epoch") for s in stairs),
                ),
                table(
                    ("steps per epoch", join_items(dict.fromkeys(number(s.steps_per_epoch) for s in stairs))),
                    (
                        "mean fall at a start of an epoch, by trial",
                        join_items(Number(float(s.loss_falls.mean())) for s in stairs),
                    ),
                    ("beyond the fall within epochs", join_items(Number(float(s.excess_falls.mean())) for s in stairs)),
                    ("p-value", say("{p} (limit {limit})", p=Probability(p), limit=Number(self.false_alarms))),
                ),
            ),
            changes=(Advise(text=_MEMORISATION_ADVICE),),
        )


def _kind_of_missing_data(study: Study) -> MissingDataKind:
    """Return which data are missing: the training loss, the length of an epoch, or enough long epochs with shuffled data."""
    if not study.has("train_loss"):
        return "train_loss"
    return "design" if any(trial.fact("steps_per_epoch") > 0 for trial in study.trials) else "facts"

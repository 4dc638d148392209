"""The rule `eval-batch`; its page is the docstring of the class."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar

from advisor.computed.batch import batches
from advisor.computed.pipeline import ranks
from advisor.engine.rule import Rule
from advisor.model.change import Advise
from advisor.model.evidence import FigureEvidence
from advisor.model.finding import Finding, Goal, MissingData
from advisor.model.study import Study, Trial


class EvalBatch(Rule):
    """Evaluations take smaller batches than training does.

    ## What it looks at
    Examples that go through the model at once on one device: in evaluations, as their loader or a hyperparameter says; in training,
    the batch size shared out among devices and accumulated micro-batches. A batch that holds the whole validation set is large
    enough.

    ## Why it matters
    An evaluation keeps no activations for a backward pass, so what fits in training fits there, too. Smaller batches only make
    evaluations slower, and slow evaluations tempt to evaluate rarely or on less data.

    ## What to do
    Evaluate with batches at least as large as those of the training.

    ## How sure
    Both sizes are noted facts: nothing is estimated, and chance raises no finding. It costs time and nothing else: a note.

    Example: "In 6 of 6 trials, evaluations take batches of 8 examples a device, training takes 64."
    """

    playbook: ClassVar[str] = "Setting up periodic evaluations"
    goal: ClassVar[Goal] = "pipeline"

    def check(self, study: Study) -> Iterator[Finding]:
        """At most one finding."""
        known = [t for t in study.trials if not math.isnan(batches.evaluated_at_once(t) + batches.at_once(t))]
        if not known:
            raise MissingData(
                "no trial noted the batch sizes of both training and evaluations; tell the hook the validation loader, or set "
                "the tags advisor.batch_size and advisor.eval_batch_size"
            )
        small = [t for t in known if _is_small(t)]
        if small:
            yield self._report(small, len(known))

    def _report(self, small: list[Trial], known: int) -> Finding:
        evaluated, trained = [batches.evaluated_at_once(t) for t in small], [batches.at_once(t) for t in small]
        enough = math.ceil(max(trained))
        advice = (
            f"Evaluate with batches of at least {enough:,} examples a device; without gradients there is room for more."
        )
        return self.finding(
            f"In {len(small)} of {known} trials, evaluations take batches of {_range(evaluated)} examples a device, training takes "
            f"{_range(trained)}.",
            action=advice,
            severity="note",
            confidence=1.0,
            subject="eval_batch_size",
            trials=small,
            evidence=(
                FigureEvidence(
                    rows=(
                        ("trials that noted both sizes", str(known)),
                        ("evaluations: examples at once on a device", _range(evaluated)),
                        ("training: examples at once on a device", _range(trained)),
                        ("devices", _range([float(ranks.world_size(t)) for t in small])),
                    )
                ),
            ),
            changes=(Advise(text=advice),),
        )


def _is_small(trial: Trial) -> bool:
    evaluated = batches.evaluated_at_once(trial)
    whole = trial.fact("n_valid") / ranks.world_size(trial)
    return evaluated < math.floor(batches.at_once(trial)) and not evaluated >= whole


def _range(sizes: list[float]) -> str:
    low, high = math.floor(min(sizes)), math.floor(max(sizes))
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"

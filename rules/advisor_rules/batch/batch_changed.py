"""The rule `batch-changed`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import ClassVar

from advisor.computed.space import kinds
from advisor.engine.rule import Count, Rule
from advisor.model.change import Advise, Change, SetRange
from advisor.model.evidence import FigureEvidence
from advisor.model.finding import Finding, Goal, MissingData
from advisor.model.space import Value, as_number, is_learning_rate
from advisor.model.study import Study, Trial


class BatchChanged(Rule):
    """The batch size, the optimizer or the model changed from one study to the next, and the learning rate was not tuned again.

    ## What it looks at
    The trials of several studies that are rounds of one, by the study that they noted, in the order in which they began: what batch
    size, optimizer and model all trials of a round share, and how many learning rates each round tried. A change counts where the
    round before it had tuned the learning rate and the round after it did not. Batch sizes that differ within one round are left to
    `space-tuned-batch`.

    ## Why it matters
    Which learning rate, momentum and regularisation are best depends on the batch size, and on optimizer and model even more. With
    those of the round before, the new round shows how badly they suit, not what the change is worth.

    ## What to do
    Tune the optimizer's hyperparameters and the regularisation again, at the new batch size, optimizer or model, before anything is
    concluded from that round. Choose the batch size early, by throughput, and leave it.

    ## How sure
    It is a count, not an estimate: confidence 0.9. What was not noted, such as a change of the data, is not seen.

    *Example:* "From study mnist to mnist-round-2 the batch size changed from 64 to 512, but of the learning rate only 1 value was
    tried there, after 12 before."
    """

    playbook: ClassVar[str] = "Changing the batch size requires re-tuning most hyperparameters"
    goal: ClassVar[Goal] = "sampling"

    settings: Count = 3
    """Learning rates from which a round counts as tuned: fewer cannot show a best one with a worse one on each side."""

    def check(self, study: Study) -> Iterator[Finding]:
        """Yield one finding per round that changed something and tuned nothing again."""
        rounds = _rounds(study)
        if len(rounds) < 2:
            parent = f"; of {study.spec.parent}, which it follows, no trial is among them" if study.spec.parent else ""
            raise MissingData(
                f"the trials are of one study{parent}; to compare rounds, log them into one experiment and note each one's "
                "study, as the advisor's training hook does"
            )
        for (before, earlier), (after, later) in pairwise(rounds.items()):
            changes = _changed(earlier, later)
            tuned = len(_rates(earlier)), len(_rates(later))
            if changes and tuned[0] >= self.settings and 0 < tuned[1] < self.settings:
                yield self._finding(study, (before, after), changes, tuned, later)

    def _finding(
        self, study: Study, names: tuple[str, str], changes: list[str], tuned: tuple[int, int], later: list[Trial]
    ) -> Finding:
        values = f"only {tuned[1]} value{'s were' if tuned[1] > 1 else ' was'} tried there, after {tuned[0]} before"
        said = f"From study {names[0]} to {names[1]} {' and '.join(changes)}, but of the learning rate {values}"
        tip = f"Tune the learning rate, the optimizer's other hyperparameters and the regularisation again for {names[1]}."
        return self.finding(
            f"{said}.",
            action=tip,
            severity="warning",
            confidence=0.9,
            trials=later,
            evidence=(
                FigureEvidence(
                    rows=(
                        ("what changed", ", ".join(changes)),
                        ("learning rates tried before and after", f"{tuned[0]} and {tuned[1]}"),
                        ("fewest that tune", str(self.settings)),
                    )
                ),
            ),
            changes=(*_search_rate(study, later, said), Advise(text=tip)),
        )


def _rounds(study: Study) -> Mapping[str, list[Trial]]:
    """The ended trials by the study that they noted, in the order in which the studies began."""
    rounds: dict[str, list[Trial]] = {}
    noted = [t for t in study.trials if study.ended[t.index] and "study" in t.facts]
    for trial in sorted(noted, key=lambda t: (math.inf if t.started is None else t.started, t.index)):
        rounds.setdefault(trial.facts["study"], []).append(trial)
    return rounds


def _changed(earlier: list[Trial], later: list[Trial]) -> list[str]:
    """What all trials of a round shared and all of the next one share otherwise, in words."""
    found = []
    for name, read in (("batch size", _batch_size), ("optimizer", _optimizer), ("model", _model)):
        before, after = {read(t) for t in earlier}, {read(t) for t in later}
        if len(before) == len(after) == 1 and None not in before | after and before != after:
            found.append(f"the {name} changed from {before.pop()} to {after.pop()}")
    return found


def _batch_size(trial: Trial) -> str | None:
    size = kinds.batch_size(trial)
    return f"{size:g}" if size > 0 else None


def _optimizer(trial: Trial) -> str | None:
    named = next((str(v) for n, v in trial.params.items() if kinds.chooses_optimizer(n)), None)
    return trial.facts.get("optimizer") or named


def _model(trial: Trial) -> str | None:
    name, size = trial.facts.get("model"), trial.fact("model_parameters")
    return f"{name} of {size:,.0f} parameters" if name and size > 0 else name


def _rates(trials: list[Trial]) -> set[Value]:
    """The learning rates that the trials tried."""
    rates = {v for t in trials for n, v in t.params.items() if is_learning_rate(n)}
    return rates or {t.facts["optimizer.learning_rate"] for t in trials if "optimizer.learning_rate" in t.facts}


def _search_rate(study: Study, later: list[Trial], why: str) -> list[Change]:
    """Search the learning rate at least a decade around the one that the later round used."""
    for name, parameter in study.spec.parameters.items():
        used = [v for t in later if (v := as_number(t.params.get(name))) > 0]
        if is_learning_rate(name) and used and not parameter.options:
            low, high = (float(f"{v:.3g}") for v in (min(used) / 10, max(used) * 10))
            return [SetRange(parameter=name, low=low, high=high, scale="log", why=why)]
    return []

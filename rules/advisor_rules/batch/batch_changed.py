"""The rule `batch-changed`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import pairwise

from advisor.engine.rule import Count, Rule
from advisor.model import parameter_kinds
from advisor.model.change import Advise, Change, SetRange
from advisor.model.evidence import table
from advisor.model.finding import Finding, MissingData
from advisor.model.message import Count as Counted, Message, Name, joined, say
from advisor.model.space import Value, as_number, is_learning_rate
from advisor.model.study import Study, Trial
from advisor.model.words import setting


class BatchChanged(Rule):
    """The batch size, the optimizer or the model changed between studies, and the learning rate was not tuned again.

    ## What it looks at
    The trials of several studies that are rounds of one tuning effort, in the order in which they began. For each round, the rule
    compares the batch size, optimizer and model that all its trials share, and counts the learning rates tried. A change counts if
    the earlier round tuned the learning rate and the later one did not. `space-tuned-batch` covers batch sizes that differ within
    one round.

    ## Why it matters
    The best learning rate, momentum and regularisation depend on the batch size, and even more on the optimizer and model. With
    the old values, a new round measures how poorly they fit the new setup, not what the change brings.

    ## What to do
    Tune the optimizer's hyperparameters and the regularisation again for the new batch size, optimizer or model before you draw
    conclusions from that round. Choose the batch size early, by throughput, and keep it.

    ## How sure
    Confidence is 0.9, because the rule only counts and needs no estimate. It cannot see changes that were not logged, such as other
    data.
    """

    playbook = "Changing the batch size requires re-tuning most hyperparameters"
    goal = "sampling"

    settings: Count = 3
    """Minimum number of learning rates in a tuned round; with fewer, there is no best rate with a worse one on each side."""

    def check(self, study: Study) -> Iterator[Finding]:
        """Yield one finding for each round that changed the batch size or a related setting without tuning the learning
        rate again.
        """
        rounds = _trials_by_study(study)
        if len(rounds) < 2:
            parent = f", and none is of its parent {study.spec.parent}" if study.spec.parent else ""
            raise MissingData(
                f"the trials are of one study{parent}; to compare rounds, log them into one experiment and note the study of each "
                "trial, as the advisor's training hook does",
                needs="design",
            )
        for (old_size, earlier), (new_size, later) in pairwise(rounds.items()):
            changes = _changed(earlier, later)
            tuned = len(_rates(earlier)), len(_rates(later))
            if changes and tuned[0] >= self.settings and 0 < tuned[1] < self.settings:
                yield self._finding(study, (old_size, new_size), changes, tuned, later)

    def _finding(
        self,
        study: Study,
        names: tuple[str, str],
        changes: list[Message],
        rate_counts: tuple[int, int],
        later: list[Trial],
    ) -> Finding:
        """`names`: names of the earlier and the later study; `rate_counts`: number of learning rates in each."""
        old_rates, new_rates = rate_counts
        message = say(
            "From study {earlier} to {later}, {changes}. Only {after} {were} tried there, after {before} before.",
            earlier=Name(names[0]),
            later=Name(names[1]),
            changes=joined(changes, " and "),
            after=Counted(new_rates, "learning rate"),
            were="was" if new_rates == 1 else "were",
            before=old_rates,
        )
        action = say(
            "Tune the learning rate, the optimizer's other hyperparameters and the regularisation again for {later}.",
            later=Name(names[1]),
        )
        return self.finding(
            message,
            action=action,
            severity="warning",
            confidence=0.9,
            trials=later,
            evidence=table(
                ("changes", joined(changes)),
                ("learning rates tried before and after", say("{n} and {m}", n=old_rates, m=new_rates)),
                ("minimum of a tuned round", self.settings),
            ),
            changes=(*_search_rate(study, later, str(message)), Advise(text=str(action))),
        )


def _trials_by_study(study: Study) -> Mapping[str, list[Trial]]:
    """Group the ended trials by the study that they logged, in the order in which the studies began."""
    rounds: dict[str, list[Trial]] = {}
    with_study = [t for t in study.trials if study.ended[t.index] and "study" in t.facts]
    for trial in sorted(with_study, key=lambda t: (math.inf if t.started is None else t.started, t.index)):
        rounds.setdefault(trial.facts["study"], []).append(trial)
    return rounds


def _changed(earlier: list[Trial], later: list[Trial]) -> list[Message]:
    """Return a clause for each setting that has a single value within each of the two rounds and differs between the rounds."""
    changes = []
    for name, value_of in (("batch size", _batch_size), ("optimizer", _optimizer), ("model", _model)):
        old_values, new_values = {value_of(t) for t in earlier}, {value_of(t) for t in later}
        if len(old_values) == len(new_values) == 1 and None not in old_values | new_values and old_values != new_values:
            old, new = (Name(str(values.pop())) for values in (old_values, new_values))
            changes.append(say("the {name} changed from {old} to {new}", name=name, old=old, new=new))
    return changes


def _batch_size(trial: Trial) -> str | None:
    size = parameter_kinds.batch_size(trial)
    return setting(size) if size > 0 else None


def _optimizer(trial: Trial) -> str | None:
    optimizer = next((str(v) for n, v in trial.params.items() if parameter_kinds.chooses_optimizer(n)), None)
    return trial.facts.get("optimizer") or optimizer


def _model(trial: Trial) -> str | None:
    name, size = trial.facts.get("model"), trial.fact("model_parameters")
    return f"{name} ({size:,.0f} parameters)" if name and size > 0 else name


def _rates(trials: list[Trial]) -> set[Value]:
    """Return the learning rates that the trials tried."""
    rates = {v for t in trials for n, v in t.params.items() if is_learning_rate(n)}
    return rates or {t.facts["optimizer.learning_rate"] for t in trials if "optimizer.learning_rate" in t.facts}


def _search_rate(study: Study, later: list[Trial], why: str) -> list[Change]:
    """Return a change that searches at least one decade around the later round's learning rates."""
    for name, parameter in study.spec.parameters.items():
        used = [v for t in later if (v := as_number(t.params.get(name))) > 0]
        if is_learning_rate(name) and used and not parameter.options:
            low, high = (float(f"{v:.3g}") for v in (min(used) / 10, max(used) * 10))
            return [SetRange(parameter=name, low=low, high=high, scale="log", why=why)]
    return []

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

from advisor.engine.rule import Count, Rule
from advisor.model import parameter_kinds
from advisor.model.change import Advise, Change, SetRange
from advisor.model.evidence import table
from advisor.model.finding import Finding, MissingData
from advisor.model.message import Count as Counted, Message, Name, join_items, say
from advisor.model.space import HyperparameterValue, as_number, is_learning_rate
from advisor.model.study import Study, Trial
from advisor.model.words import setting


class BatchChanged(Rule):
    """The batch size, the optimizer or the model changed between studies, and the learning rate was not tuned again.

    ## What it looks at
    The rule compares the studies of one tuning effort in chronological order. For each study, the rule reads the batch size,
    the optimizer and the model if they are the same in all trials, and counts the learning rates tried. A change between two
    studies counts if the earlier study tuned the learning rate and the later one did not. The rule `space-tuned-batch` covers
    batch sizes that differ within one study.

    ## Why it matters
    The best learning rate, momentum and regularisation depend on the batch size, and even more on the optimizer and model. With
    untuned hyperparameters, the new study shows how poorly their old values fit, not the benefit of the new batch size,
    optimizer or model.

    ## What to do
    Tune the optimizer's hyperparameters and the regularisation again for the new batch size, optimizer or model before you draw
    conclusions from the new study. Choose the batch size early by its throughput, and keep that batch size.

    ## How sure
    Confidence is 0.9, because the rule only counts and estimates nothing. The rule cannot see changes that were not logged,
    such as a change of the training data.
    """

    playbook = "Changing the batch size requires re-tuning most hyperparameters"
    goal = "sampling"

    settings: Count = 3
    """Minimum number of learning rates at which a study counts as tuned. Fewer than three cannot show that both lower and
    higher rates are worse than the best rate."""

    def check(self, study: Study) -> Iterator[Finding]:
        trials_of_studies: dict[str, list[Trial]] = {}
        with_study = [t for t in study.trials if study.ended[t.index] and "study" in t.facts]
        for trial in sorted(with_study, key=lambda t: (math.inf if t.started is None else t.started, t.index)):
            trials_of_studies.setdefault(trial.facts["study"], []).append(trial)
        if len(trials_of_studies) < 2:
            parent = f", and none belongs to its parent study {study.spec.parent}" if study.spec.parent else ""
            raise MissingData(
                f"all trials belong to one study{parent}; to compare studies, log them into one experiment and record the "
                "study of each trial, as the advisor's training hook does",
                needs="design",
            )
        for (old_size, earlier), (new_size, later) in pairwise(trials_of_studies.items()):
            changes = _changed_settings_clauses(earlier, later)
            rate_counts = len(_learning_rates_tried(earlier)), len(_learning_rates_tried(later))
            if changes and rate_counts[0] >= self.settings and 0 < rate_counts[1] < self.settings:
                yield self._build_finding(study, (old_size, new_size), changes, rate_counts, later)

    def _build_finding(
        self, study: Study, names: tuple[str, str], changes: list[Message], rate_counts: tuple[int, int], later: list[Trial]
    ) -> Finding:
        """`names` and `rate_counts` hold the name and the number of learning rates of the earlier and of the later study."""
        text = "Only {after} {were} tried in the later study, and {before} in the earlier one."
        message = say(
            f"From study {{earlier}} to {{later}}, {{changes}}. {text}",
            earlier=Name(names[0]),
            later=Name(names[1]),
            changes=join_items(changes, " and "),
            after=Counted(rate_counts[1], "learning rate"),
            were="was" if rate_counts[1] == 1 else "were",
            before=rate_counts[0],
        )
        advice = "Tune the learning rate, the optimizer's other hyperparameters and the regularisation again for {later}."
        action = say(advice, later=Name(names[1]))
        rate_counts_text = say("{n} and {m}", n=rate_counts[0], m=rate_counts[1])
        return self.finding(
            message,
            action=action,
            severity="warning",
            confidence=0.9,
            trials=later,
            evidence=table(
                ("changes", join_items(changes)),
                ("learning rates tried in the earlier and the later study", rate_counts_text),
                ("minimum number of learning rates in a tuned study", self.settings),
            ),
            changes=(*_search_learning_rate(study, later, str(message)), Advise(text=str(action))),
        )


def _changed_settings_clauses(earlier: list[Trial], later: list[Trial]) -> list[Message]:
    """Return a clause for each setting that has one value in the earlier study and another value in the later study."""
    changes = []
    earlier_settings, later_settings = ([_settings_of_trial(t) for t in trials] for trials in (earlier, later))
    for name in earlier_settings[0]:
        old, new = ({values[name] for values in trials} for trials in (earlier_settings, later_settings))
        if len(old) == len(new) == 1 and None not in old | new and old != new:
            text = "the {name} changed from {old} to {new}"
            changes.append(say(text, name=name, old=Name(str(old.pop())), new=Name(str(new.pop()))))
    return changes


def _settings_of_trial(trial: Trial) -> dict[str, str | None]:
    size, model, count = parameter_kinds.batch_size(trial), trial.facts.get("model"), trial.fact("model_parameters")
    optimizer = next((str(v) for n, v in trial.params.items() if parameter_kinds.chooses_optimizer(n)), None)
    return {
        "batch size": setting(size) if size > 0 else None,
        "optimizer": trial.facts.get("optimizer") or optimizer,
        "model": f"{model} ({count:,.0f} parameters)" if model and count > 0 else model,
    }


def _learning_rates_tried(trials: list[Trial]) -> set[HyperparameterValue]:
    rates = {v for t in trials for n, v in t.params.items() if is_learning_rate(n)}
    return rates or {t.facts["optimizer.learning_rate"] for t in trials if "optimizer.learning_rate" in t.facts}


def _search_learning_rate(study: Study, later: list[Trial], reason: str) -> list[Change]:
    for name, parameter in study.spec.parameters.items():
        used_rates = [v for t in later if (v := as_number(t.params.get(name))) > 0]
        if is_learning_rate(name) and used_rates and not parameter.options:
            low, high = (float(f"{v:.3g}") for v in (min(used_rates) / 10, max(used_rates) * 10))
            return [SetRange(parameter=name, low=low, high=high, scale="log", why=reason)]
    return []

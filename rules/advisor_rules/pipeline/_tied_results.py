"""Message and advice for studies whose best settings all have the same result."""

from __future__ import annotations

from collections.abc import Sequence

from advisor.computed.pipeline import checkpoints, validation
from advisor.model.message import Message, Name, Number, Objective, say
from advisor.model.space import round_up_steps
from advisor.model.study import Study, Trial

_KEPT_CHECKPOINTS_ADVICE = "The checkpoints that these trials kept can be evaluated on them without new training."


def tied_settings_message(study: Study, trials: Sequence[Trial], detectable: float) -> Message:
    """Return the sentence on settings with equal results. `detectable` is the smallest difference that the validation set can
    show."""
    n, room = round(trials[0].fact("n_valid")), validation.distance_to_perfect_score(study)
    perfect = say(
        "A perfect score would be better by only {room}, which is less than the {least} that {n} validation examples can "
        "show, so no setting can be shown to be better.",
        room=Number(room, 2),
        least=Number(detectable, 2),
        n=n,
    )
    least = say("{n} validation examples show only differences of {least}.", n=n, least=Number(detectable, 2))
    return say(
        "The {k} best settings have the same best {metric}, {value}. {limit}",
        k=len(trials),
        metric=Name(study.spec.objective.metric),
        value=Objective(study.objective_value(float(study.costs[trials[0].index]))),
        limit=perfect if room < detectable else least,
    )


def harder_evaluation_advice(study: Study, trials: Sequence[Trial], examples: float = 0.0) -> str:
    """Return the advice to evaluate on harder or more examples. `examples` is the number of validation examples needed to
    distinguish a perfect score from the best result, or 0 if unknown."""
    what = "episodes" if study.kind == "reinforcement-learning" else "examples"
    n, loss = trials[0].fact("n_valid"), _finer_evaluation_metric(study, trials)
    known = n < examples <= n * validation.MAX_VALIDATION_SET_GROWTH
    size = f"at least {round_up_steps(examples):,} harder" if known else "more or harder"
    late = loss is None and any(len(study.cost_curve(t)) > 1 for t in trials)
    finer = "by a finer metric" if loss is None else loss
    advice = (
        f"Evaluate on {size} {what}, or {finer}{', and judge trials by the mean of their late evaluations' if late else ''}."
    )
    return f"{advice} {_KEPT_CHECKPOINTS_ADVICE}" if all(map(checkpoints.checkpoint_paths, trials)) else advice


def _finer_evaluation_metric(study: Study, trials: Sequence[Trial]) -> str | None:
    """Return the advice to compare the validation loss if it was logged and can replace the objective; else None.

    The loss of preference training depends on beta, so losses with different beta are not comparable.
    """
    loss = study.signals.get("valid_loss")
    if loss is None or loss == study.spec.objective.metric or study.kind == "reinforcement-learning":
        return None
    by_preferences = study.has("train_chosen_logp") or study.has("valid_chosen_logp")
    if not by_preferences or "beta" not in study.searched:
        return f"compare {loss}"
    betas = [trial.params.get("beta") for trial in trials]
    if len(set(betas)) < len(betas):
        return f"compare {loss} among trials with the same beta"
    return f"fix beta and compare {loss}, which depends on beta"

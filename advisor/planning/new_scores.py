"""Studies after a change of the validation data: their scores are not comparable with the old ones, so they stand alone.

If the next study changes nothing about the search, it trains the best settings again, and the new scores rank them. Otherwise, the
study gets the number of trials that it would get without earlier ones (`budget`), and repeats the best setting so far.
"""

from __future__ import annotations

from collections.abc import Iterable

from advisor.computed.decision import repeats
from advisor.model.change import Advise, RepeatTrial
from advisor.model.finding import Finding
from advisor.model.space import Value
from advisor.model.spec import StudySpec
from advisor.model.study import Study
from advisor.planning.base import validate
from advisor.planning.sampling.halton import sample

BEST = 5
"""Maximum number of best settings to train again. Our choice: as many as the rules on validation noise compare."""
NOT_COMPARABLE = "The new scores are not comparable with the old ones."
ALONE = f"{NOT_COMPARABLE} Analyze this study with `--only-this-round`."
CHECKPOINTS = "If these trials kept checkpoints, evaluate those on the new data instead of training again."
POLICIES = "If these trials kept checkpoints, evaluate those over more episodes instead of training again."
FIRST = "the first trial repeats the best setting, because the new scores are not comparable with the old ones"


def needs_new_scores(spec: StudySpec, findings: Iterable[Finding]) -> bool:
    """Return whether the study waits for other validation data, as its notes say. Advice of a mere note may be left out."""
    return any(
        isinstance(c, Advise) and c.new_scores and c.text in spec.notes
        for f in findings
        if f.severity != "note"
        for c in f.changes
    )


def train_again(study: Study, spec: StudySpec, base: StudySpec, findings: Iterable[Finding]) -> StudySpec:
    """Return the study that trains the best settings again, with the advice of `spec`; `spec` if there are none.

    base: the study without any change. All other changes of `spec` wait for the new scores.
    """
    best: dict[object, dict[str, Value]] = {}
    for trial in study.ranked():
        if trial.params:
            best.setdefault(repeats.key(trial), dict(trial.params))
    first, *rivals = [*best.values()][:BEST] or [{}]
    if not first:
        return spec
    advice = {*base.notes, *(c.text for f in findings for c in f.changes if isinstance(c, Advise))}
    rewards = study.kind == "reinforcement-learning"
    why = (
        f"one of the best settings, to be compared {'over more episodes' if rewards else 'on the new validation data'}"
    )
    again = RepeatTrial(parameters=first, rivals=tuple(rivals), seeds=1, why=why).apply(base)
    which = f"{len(rivals) + 1} best settings" if rivals else "best setting"
    update = {
        "study": spec.study,
        "sampler": spec.sampler,
        "seeds": None,
        "goal": f"Train the {which} again: the {'evaluation changes' if rewards else 'validation data change'}",
        "notes": (*(n for n in spec.notes if n in advice), ALONE, POLICIES if rewards else CHECKPOINTS),
    }
    return validate(again.model_copy(update=update))


def with_best(study: Study, spec: StudySpec) -> StudySpec:
    """Return the search with the best setting so far as its first trial, if it has a value for each searched hyperparameter."""
    best = study.ranked()[:1]
    searches = bool(spec.searched) and spec.probe is None and not spec.settings and spec.sampler.kind != "adaptive"
    if not searches or not best or not spec.searched.keys() <= best[0].params.keys():
        return spec
    first, *others = best[0].params, *sample(spec, max((spec.trials or 1) - 1, 0))
    settings = tuple({n: trial[n] for n in spec.searched if n in trial} for trial in (first, *others))
    return validate(spec.model_copy(update={"settings": settings, "notes": (*spec.notes, ALONE)}))

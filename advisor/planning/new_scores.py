"""Plans studies whose scores are not comparable with earlier scores. Such studies are analysed without earlier rounds.

Scores are no longer comparable if the validation data changes, or a hyperparameter on which scores depend, such as the maximum
length of completions. If the next study has no other changes, it trains the best settings again to rank them by the new scores.
Otherwise, it repeats the best setting first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from advisor.computed.decision import repeats
from advisor.computed.pipeline import checkpoints
from advisor.model.change import Advise, Change, FixParameter, RepeatTrial
from advisor.model.finding import Finding
from advisor.model.spec import StudySpec
from advisor.model.study import Study, Trial
from advisor.model.words import clean, listed, setting
from advisor.planning.base import validate_spec
from advisor.planning.sampling.halton import draw_trials

MAX_SETTINGS_TRAINED_AGAIN = 5
"""Maximum number of best settings that are trained again. Rules on validation noise compare as many."""
NOT_COMPARABLE_NOTE = "The new scores are not comparable with the old scores."
ANALYZE_ALONE_NOTE = f"{NOT_COMPARABLE_NOTE} Analyze this study with `--only-this-round`."
_REEVALUATE = "If these trials kept checkpoints, evaluate these checkpoints {where} instead of training again."
REEVALUATE_CHECKPOINTS_NOTE = _REEVALUATE.format(where="on the new data")
REEVALUATE_POLICIES_NOTE = _REEVALUATE.format(where="over more episodes")
REPEAT_BEST_FIRST_REASON = (
    "the first trial repeats the best setting, because the new scores are not comparable with the old scores"
)


def needs_new_scores(spec: StudySpec, findings: Iterable[Finding]) -> bool:
    """Return whether the study asks for other validation data, or fixes a value on which scores depend. Findings that are only
    notes do not count, because users may ignore them."""
    warnings = [f for f in findings if f.severity != "note"]
    changes = [c for f in warnings for c in f.changes if makes_scores_incomparable(c)]
    return bool(score_changing_fixes(spec, warnings)) or any(isinstance(c, Advise) and c.text in spec.notes for c in changes)


def makes_scores_incomparable(change: Change) -> bool:
    """Return whether results before and after the change are not comparable."""
    return isinstance(change, Advise | FixParameter) and change.new_scores


def score_changing_fixes(spec: StudySpec, findings: Iterable[Finding]) -> list[FixParameter]:
    """Return the changes of the findings that fix a value on which scores depend, if the study contains these changes."""
    fixes = (c for f in findings for c in f.changes if isinstance(c, FixParameter) and c.new_scores)
    return [c for c in fixes if c.parameter in spec.parameters and spec.parameters[c.parameter].value == c.value]


def best_trial_per_setting(study: Study) -> list[Trial]:
    """Return the best trial of each of the best settings, in the order of `Study.ranked`. If settings beyond
    `MAX_SETTINGS_TRAINED_AGAIN` are as good as the last settings, leave out all these equally good settings."""
    best_trials = repeats.first_trial_per_setting(t for t in study.ranked() if t.params)
    first, further = best_trials[:MAX_SETTINGS_TRAINED_AGAIN], best_trials[MAX_SETTINGS_TRAINED_AGAIN:]
    return [t for t in first if not further or study.rank_key(t) != study.rank_key(further[0])] or first


def study_of_best_settings(study: Study, spec: StudySpec, base: StudySpec, findings: Iterable[Finding]) -> StudySpec:
    """Return a study that trains the best settings again, with the advice in `spec`; return `spec` if no trial has a result.
    Changes wait for the new scores, unless scores depend on them. base: the study before any change."""
    trials = best_trial_per_setting(study)
    first, *rivals = [dict(t.params) for t in trials] or [{}]
    if not first:
        return spec
    findings = tuple(findings)
    advice_texts = {*base.notes, *(c.text for f in findings for c in f.changes if isinstance(c, Advise))}
    value_changes, by_rewards = score_changing_fixes(spec, findings), study.kind == "reinforcement-learning"
    if value_changes:
        goal = f"with {listed(f'{clean(c.parameter)} {setting(c.value)}' for c in value_changes)}"
        comparison_text, notes = goal, [ANALYZE_ALONE_NOTE]
    else:
        goal = f"the {'evaluation changes' if by_rewards else 'validation data change'}"
        comparison_text = "over more episodes" if by_rewards else "on the new validation data"
        fallback = REEVALUATE_POLICIES_NOTE if by_rewards else REEVALUATE_CHECKPOINTS_NOTE
        notes = [_evaluate_first_advice(trials, fallback), ANALYZE_ALONE_NOTE]
    why = f"one of the best settings, to be compared {comparison_text}"
    repeats_spec = RepeatTrial(parameters=first, rivals=tuple(rivals), seeds=1, why=why).apply(base)
    for change in value_changes:
        repeats_spec = change.apply(repeats_spec)
    settings_text = f"{len(rivals) + 1} best settings" if rivals else "best setting"
    update = {
        "study": spec.study,
        "sampler": spec.sampler,
        "seeds": None,
        "goal": f"Train the {settings_text} again{'' if value_changes else ':'} {goal}",
        "notes": (*notes, *(n for n in spec.notes if n in advice_texts)),
    }
    return validate_spec(repeats_spec.model_copy(update=update))


def _evaluate_first_advice(trials: Sequence[Trial], advice_without_paths: str) -> str:
    """Return advice to evaluate the checkpoints at their logged paths, or `advice_without_paths` without such paths."""
    last_checkpoints = [checkpoint_paths[-1] for t in trials if (checkpoint_paths := checkpoints.checkpoint_paths(t))]
    if len(last_checkpoints) < len(trials) or len(set(last_checkpoints)) < len(last_checkpoints):
        return advice_without_paths
    return f"Before you train, evaluate the checkpoints that these trials kept: {', '.join(last_checkpoints)}."


def with_best_setting_first(study: Study, spec: StudySpec) -> StudySpec:
    """Make the best setting so far the first trial of the search, if it has all searched hyperparameters."""
    best_trials = study.ranked()[:1]
    is_search = bool(spec.searched) and spec.probe is None and not spec.settings and spec.sampler.kind != "adaptive"
    if not is_search or not best_trials or not spec.searched.keys() <= best_trials[0].params.keys():
        return spec
    first, *others = best_trials[0].params, *draw_trials(spec, max((spec.trials or 1) - 1, 0))
    settings = tuple({n: trial[n] for n in spec.searched if n in trial} for trial in (first, *others))
    return validate_spec(spec.model_copy(update={"settings": settings, "notes": (*spec.notes, ANALYZE_ALONE_NOTE)}))

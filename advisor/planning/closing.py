"""Chooses the next study if no rule recommends a change.

The planner switches from exploration to exploitation only if there is positive evidence that exploration is complete
(`states`). While evidence is missing, the planner chooses the cheapest study that provides this evidence: a search of the
learning rate for a newly fixed batch size, a search of fewer hyperparameters, or more trials of the same space. Long runs and
repeats come last."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from advisor.computed.decision import repeats
from advisor.computed.pipeline import validation
from advisor.computed.space import importance, promising, settings
from advisor.computed.space.extension import names_of_changed_ranges
from advisor.computed.space.inside import trials_in_space
from advisor.engine.rule import Rule
from advisor.model import parameter_kinds
from advisor.model.change import Change, FixParameter, RunPlan, StudyDesignName
from advisor.model.finding import MissingData, Verdict
from advisor.model.optimizers import TRIALS_FOR_RATE_ONLY
from advisor.model.prediction import round_significant
from advisor.model.space import is_learning_rate
from advisor.model.spec import Sampler, StudySpec
from advisor.model.study import Study
from advisor.model.usual_rates import HALF_DECADE
from advisor.model.words import clean, listed, lower_first_letter, plain_number, setting, share
from advisor.planning import price
from advisor.planning.base import best_trial_setting, initial_draft, is_random_search, round_study_name, validate_spec
from advisor.planning.designs.catalogue import STUDY_DESIGNS
from advisor.planning.designs.explore import explore, still_compares_values
from advisor.planning.designs.ladder import smaller_search
from advisor.planning.designs.open_next import equal_rates_reason, search_next_hyperparameter
from advisor.planning.designs.reseed import repeat_best_trial
from advisor.planning.new_scores import needs_new_scores
from advisor.planning.recipes.recipe import recipe_notes
from advisor.planning.sampling.halton import draw_trials
from advisor.planning.states import MIN_EFFECT_IN_SEED_SD, ExplorationEvidence, assess_evidence, settings_needed
from advisor.stats import power

MAX_GAIN_PROBABILITY = 0.05
"""Maximum modelled probability of finding a better setting at which a search of a settled search space is skipped."""
STOP_SEARCHING_GOAL = "Stop searching"
"""First words of the goal of a study that replaces a search, because the search would hardly find a better setting."""
UNLIKELY_GAIN_NOTE = (
    "More search would hardly help: the probability that {count} more trials find a setting that is better than the best one "
    "by more than noise is at most {chance}."
)
NOISE_TEST_NOTE = (
    "If these runs, which differ only in seed, vary as much as the trials so far, the results are noise, and {names} "
    "hardly matter in their ranges: search other hyperparameters. If they vary much less, more trials will show the best values."
)
DEPLOY_AFTER_REPEATS_NOTE = "If these runs agree, measure their setting on {data}, once, and deploy it."


def closing_study(study: Study, verdicts: Sequence[Verdict], rules: Sequence[Rule], base: StudySpec) -> StudySpec | None:
    """Return the next study if no rule recommends a change, or None if nothing is left to do."""
    name = round_study_name(base, base.round)
    if study.spec.baseline is not None:
        return base.model_copy(update={"study": name, "goal": f"Resume the study that {study.name} prepared"})
    if study.probe is not None:
        return None
    for spec in _studies_for_open_questions(study, verdicts, rules, base):
        if isinstance(spec, StudySpec):
            sampler = Sampler(kind=spec.sampler.kind, seed=base.round)
            return validate_spec(spec.model_copy(update={"study": name, "sampler": sampler}))
    return None


def answering_open_questions(study: Study, verdicts: Sequence[Verdict], rules: Sequence[Rule], spec: StudySpec) -> StudySpec:
    """Adapt a study that only adds trials, shortens trials or narrows ranges, so that the study also shows which
    hyperparameters have an effect and how much results vary between seeds.

    If this study has too few trials for all hyperparameters, it searches some of them, including all with changed ranges."""
    evidence = assess_evidence(study, verdicts, rules)
    if study.probe is not None or study.spec.baseline is not None or evidence.effect == evidence.variation == "fine":
        return spec
    changed = names_of_changed_ranges(study, spec)
    smaller = smaller_search(study, spec, keep=changed)
    if smaller is not None or not spec.searched or changed or len(spec.searched) < len(study.searched):
        return smaller or spec
    earlier = settings.read_settings(study).result_count if spec.max_train_steps == study.spec.max_train_steps else 0
    power_note = price.power_sentence(study, earlier, spec.trials or 1, len(spec.searched))
    return spec.model_copy(update={"notes": (power_note, *spec.notes)})


def stop_if_settled(
    study: Study, verdicts: Sequence[Verdict], rules: Sequence[Rule], spec: StudySpec
) -> tuple[StudySpec | None, str]:
    """Return (`spec`, "") if the search `spec` may find a better setting. Otherwise, return (repeats of the best setting, ""),
    or (None, the reason to stop) if the best setting was repeated already.

    A search is stopped in two cases: a model predicts no gain in the space of `study`, and nothing shows that this space is
    wrong; or the study searched only a learning rate, and all rates give the same result within noise."""
    gain_probability = None if still_compares_values(study, spec) else _small_gain_probability(study, verdicts, rules, spec)
    same_search = not promising.trains_differently(study, spec) and spec.searches_within(initial_draft(study))
    scores_change = needs_new_scores(spec, [f for v in verdicts for f in v.findings])
    equal_rates = equal_rates_reason(study, spec) if is_random_search(spec) and same_search and not scores_change else ""
    reason = equal_rates
    if gain_probability is not None:
        reason = UNLIKELY_GAIN_NOTE.format(count=spec.trials or 1, chance=share(gain_probability))
    if not reason:
        return spec, ""
    repeats_spec = repeat_best_trial(study, spec)
    if repeats_spec is None:
        return None, reason
    reasons_by_name = {n: p.why for n, p in spec.parameters.items() if p.role == "fixed"}
    reasons_by_name |= dict.fromkeys(spec.searched, equal_rates.removesuffix(".")) if equal_rates else {}
    parameters = {n: p.model_copy(update={"why": reasons_by_name.get(n) or p.why}) for n, p in repeats_spec.parameters.items()}
    note = f"{reason} {DEPLOY_AFTER_REPEATS_NOTE.format(data=spec.objective.final_data)}"
    name = f" {clean(next(iter(spec.searched)))}" if equal_rates else ""
    goal = f"{STOP_SEARCHING_GOAL}{name} and {lower_first_letter(repeats_spec.goal)}"
    return repeats_spec.model_copy(update={"goal": goal, "parameters": parameters, "notes": (note, *recipe_notes(spec))}), ""


def _small_gain_probability(study: Study, verdicts: Sequence[Verdict], rules: Sequence[Rule], spec: StudySpec) -> float | None:
    if not is_random_search(spec) or spec.sampler.kind == "adaptive" or promising.trains_differently(study, spec):
        return None
    if not trials_in_space(spec, study.ranked()[:1]):
        return None
    evidence_state = assess_evidence(study, verdicts, rules).state
    if evidence_state != "wrong" and price.is_search_hopeless(study, spec):
        return price.MAX_HOPELESS_GAIN_PROBABILITY
    if evidence_state != "fine" or not still_compares_values(study, study.spec):
        return None
    gain_probability = promising.chance_of_gain(study, list(draw_trials(spec, spec.trials or 1)))
    return MAX_GAIN_PROBABILITY if gain_probability is not None and gain_probability <= MAX_GAIN_PROBABILITY else None


def _studies_for_open_questions(
    study: Study, verdicts: Sequence[Verdict], rules: Sequence[Rule], base: StudySpec
) -> Iterator[StudySpec | tuple[Change, ...] | None]:
    # A perfect setting cannot be beaten, and more settings do not show which of the compared settings is better.
    compares_values = any(p.role == "scientific" for p in study.searched.values()) and repeats.compared_settings(study)
    if validation.perfect_trials(study) or compares_values:
        yield repeat_best_trial(study, base)
        return
    yield _rate_search_for_batch(study, base)
    yield search_next_hyperparameter(study, base)
    uses_quasi_random_search = study.spec.sampler.kind != "adaptive"
    evidence = assess_evidence(study, verdicts, rules)
    if uses_quasi_random_search and (evidence.state != "fine" or still_compares_values(study, base)):
        if evidence.effect != "fine" or evidence.variation != "fine":
            yield smaller_search(study, base)
        if "fine" not in (evidence.effect, evidence.variation) and not still_compares_values(study, base):
            # Repeats show whether the differences between trials are only noise.
            reruns = repeat_best_trial(study, base) if len(settings.read_settings(study)) >= TRIALS_FOR_RATE_ONLY else None
            note = NOISE_TEST_NOTE.format(names=listed(map(clean, base.searched)))
            yield reruns and reruns.model_copy(update={"notes": (*reruns.notes, note)})
        yield explore(study, verdicts, rules, base, evidence)
    design_names: list[StudyDesignName] = ["exploit"] if uses_quasi_random_search and evidence.state == "fine" else []
    design_names += ["rounds"] if base.final_train_steps and (evidence.effect == "fine" or not uses_quasi_random_search) else []
    for name in design_names:
        yield STUDY_DESIGNS[name](RunPlan(plan=name, why="nothing is left to change"), study, base)
    reruns = repeat_best_trial(study, base)
    yield reruns if reruns is None else _with_power_note(study, reruns, evidence)


def _rate_search_for_batch(study: Study, base: StudySpec) -> StudySpec | None:
    batch_sizes = [n for n in study.searched if parameter_kinds.is_batch_size(n) and base.parameters[n].role == "fixed"]
    rates = [n for n in base.searched if is_learning_rate(n)]
    if not batch_sizes or not rates:
        return None
    name = batch_sizes[0]
    value = base.parameters[name].value
    tried_settings = {repeats.key(t) for t in study.ranked() if t.params.get(name) == value}
    if len(tried_settings) >= TRIALS_FOR_RATE_ONLY:
        return None
    goal = f"Fix {clean(name)} at {setting(value)} and tune {listed(map(clean, rates))}"
    best_setting = best_trial_setting(study, base)
    for other in [n for n, p in base.searched.items() if p.role == "scientific" and n in study.inferred and n in best_setting]:
        why = "fixed for now at the best trial's value, because the learning rate is tuned first"
        base = FixParameter(parameter=other, value=best_setting[other], why=why, for_now=True).apply(base)
    for name in rates:
        rate = base.parameters[name]
        if name not in study.inferred or rate.low is None or rate.high is None or not 0 < rate.low <= rate.high < 10 * rate.low:
            continue
        middle_rate, (min_rate, max_rate) = math.sqrt(rate.low * rate.high), rate.declared_limits
        low, high = (round_significant(middle_rate * factor, 2) for factor in (1 / HALF_DECADE, HALF_DECADE))
        why = f"a decade around the rates that were tried, {plain_number(rate.low)} to {plain_number(rate.high)}"
        update = {"low": max(low, min_rate), "high": min(high, max_rate), "scale": "log", "why": why}
        base = base.with_parameter(name, rate.model_copy(update=update))
    return base.model_copy(update={"goal": goal, "trials": max(TRIALS_FOR_RATE_ONLY, settings_needed(len(base.searched)))})


def _with_power_note(study: Study, spec: StudySpec, evidence: ExplorationEvidence) -> StudySpec:
    """If a test found no effect of any hyperparameter, add a note with the smallest effect that it would have found."""
    tried, number = settings.read_settings(study).result_count, len(study.searched)
    was_pruned = any(t.status == "pruned" for t in study.trials)
    if was_pruned or evidence.effect == "fine" or not number or power.detectable_effect(tried, number) > MIN_EFFECT_IN_SEED_SD:
        return spec
    try:
        importance.compute_importances(study)
    except MissingData:
        return spec
    return spec.model_copy(update={"notes": (*spec.notes, price.past_power_sentence(study, tried, number))})

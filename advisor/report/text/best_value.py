"""Sentences about the best value of a study, and the key figures of its report."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator

from advisor.model.message import Message, MessagePart, Name, Objective, join_items, say
from advisor.model.prediction import round_significant
from advisor.model.space import is_learning_rate, setting_key
from advisor.model.words import capitalise, count, number, setting, share, shorten, spelled
from advisor.report.model import Best, ReportData
from advisor.report.plot_data.model import TrialRow
from advisor.report.text.study_diff import completed_spec, is_same_domain

_MAX_NAMED_PARAMETERS = 4
MAX_EARLY_STEP_SHARE = 0.5
"""Share of the best trial's training before which a best value counts as early. The report mentions an early best value."""
MIN_RELATIVE_TRAINING_LENGTH = 0.5
"""Minimum length of the best trial, as a share of the other trials' median. The report mentions a shorter best trial."""


def best_sentence(report: ReportData) -> Message:
    best, counts = report.best, report.counts
    metric, failed = Name(report.spec.objective.metric), _failed_trials_sentence(report)
    if best is None:
        return say("No completed trial has a value of {metric}.{failed}", metric=metric, failed=failed)
    rank_word = "lowest" if report.minimize else "highest"
    compared_count = len(report.ranked)
    trials = "trials with a result" if compared_count >= counts.feasible else "comparable trials"
    rank_text = f"the {rank_word} of {compared_count:,} {trials}"
    if best.mean is not None and report.spread is not None:
        return say(
            "The best trial's setting reaches a mean {metric} of {mean} (standard error {error}, {runs}){settings}. The best "
            "trial alone reaches {value}, {source}.{short}{failed}",
            metric=metric,
            mean=Objective(best.mean.value),
            error=number(report.spread.deviation / math.sqrt(best.mean.trials), 2),
            runs=count(best.mean.trials, "trial"),
            settings=_best_setting_clause(report),
            value=Objective(best.value),
            source=rank_text,
            short=_short_training_sentence(report),
            failed=failed,
        )
    tie_count = _tied_setting_count(report) if _lead_over_other_settings(report) == 0 else 0
    return say(
        "{start} {value}, {source}{tied}{settings}.{steps}{short}{failed}",
        start=say("{n} share the best {metric},", n=capitalise(spelled(tie_count + 1, "setting")), metric=metric)
        if tie_count
        else say("The best {metric} is", metric=metric),
        value=Objective(best.value),
        source="from the only trial with a result" if compared_count == 1 else rank_text,
        tied=_tied_trial_clause(report) if tie_count else "",
        settings=_best_setting_clause(report),
        steps=_best_step_sentences(best),
        short=_short_training_sentence(report),
        failed=failed,
    )


def _tied_trial_clause(report: ReportData) -> Message:
    assert report.best is not None
    best_place = report.ranked[0][1].place
    tied_settings = {setting_key(t.params) for _, t in report.ranked if t.place == best_place}
    name = Name(report.best.name)
    if all(t.evaluations < 2 for _, t in report.ranked):
        return say(", such as {name}", name=name)
    if len(tied_settings) == _tied_setting_count(report) + 1:
        return say(". The means of their late evaluations are equal, too. One of these settings is that of {name}", name=name)
    if len(tied_settings) > 1:
        clause_text = ". By the mean of late evaluations, {n} are still equal, such as {name}"
        return say(clause_text, n=spelled(len(tied_settings), "setting"), name=name)
    return say(". By the mean of late evaluations, {name} is the best of these settings", name=name)


def _best_setting_clause(report: ReportData) -> MessagePart:
    assert report.best is not None
    params, importances = report.best.params, report.figures.importances
    first_subject = report.heads[0].subject if report.heads else None
    importance = {i.parameters[0]: i.share for i in importances.of_parameters} if importances is not None else {}
    by_relevance = sorted(params, key=lambda n: (n != first_subject, not is_learning_rate(n), -importance.get(n, 0.0)))
    clauses: list[MessagePart] = []
    for name in by_relevance[:_MAX_NAMED_PARAMETERS]:
        value_text = shorten(setting(params[name], 3), 30)
        clauses.append(say("{start}{name} {value}", start=", " if clauses else ", at ", name=Name(name), value=value_text))
    if len(params) > _MAX_NAMED_PARAMETERS:
        clauses.append(f" and {len(params) - _MAX_NAMED_PARAMETERS} more")
    return Message(tuple(clauses))


def _best_step_sentences(best: Best) -> Message:
    early_sentence = checkpoint_sentence = Message(())
    if best.step is not None and best.last_step and best.step < MAX_EARLY_STEP_SHARE * best.last_step:
        sentence_text = " The best value was reached at step {step} of {last}."
        early_sentence = say(sentence_text, step=f"{best.step:,}", last=f"{best.last_step:,}")
    if best.kept_step is not None and best.kept_value is not None:
        sentence_text = " No checkpoint has this value: the checkpoint that was kept, at step {step}, has {value}."
        checkpoint_sentence = say(sentence_text, step=f"{best.kept_step:,}", value=Objective(best.kept_value))
    return join_items((early_sentence, checkpoint_sentence), "")


def _short_training_sentence(report: ReportData) -> Message:
    best = report.best
    other_lengths = sorted(t.last_step for _, t in report.ranked[1:] if t.last_step)
    usual_length = other_lengths[len(other_lengths) // 2] if other_lengths else 0
    if best is None or not best.last_step or best.last_step >= MIN_RELATIVE_TRAINING_LENGTH * usual_length:
        return Message(())
    last, usual = f"{best.last_step:,}", f"{round(round_significant(usual_length, 3)):,}"
    sentence_text = " {name}, the best trial, ended at step {last}; the other trials ended at about step {usual}."
    return say(sentence_text, name=Name(best.name), last=last, usual=usual)


def _failed_trials_sentence(report: ReportData) -> str:
    counts = report.counts
    reasons = []
    # Do not write "failed", because rules also count a trial as failed if it ended with a result but learned nothing.
    if counts.failed and counts.failed == counts.total:
        reasons.append("the only trial failed" if counts.total == 1 else f"all {counts.total:,} trials failed")
    elif counts.failed:
        causes = counts.status_counts_text("diverged", "infeasible", "not_learned")
        why = f" ({causes})" if causes else ""
        reasons.append(f"{counts.failed:,} of {counts.total:,} trials ended without a usable result{why}")
    if counts.running:
        reasons.append(spelled(counts.running, "trial is still running", "trials are still running"))
    if counts.no_data:
        reasons.append(f"{spelled(counts.no_data, 'trial')} logged no objective")
    return f" {capitalise(', '.join(reasons))}." if reasons else ""


def uncertainty(report: ReportData) -> Message:
    """Return sentences on how uncertain the best value is: its variation between seeds and, if known, between repeated studies."""
    if report.rerun_interval is None or _lead_over_other_settings(report) == 0:
        return _uncertainty_sentence(report)
    low, high = report.rerun_interval
    best_value = math.nan if report.best is None else report.best.value
    # An interval's end at the best possible value says nothing, so state only the other end.
    if (report.minimize and low == 0) or (not report.minimize and high in (1, 100)):
        limit, better = (high, "lower") if report.minimize else (low, "higher")
        result = say("be {limit} or {better} with a probability of 90 %", limit=Objective(limit), better=better)
    else:
        is_outside = best_value < low if report.minimize else best_value > high
        be = "probably be worse: between" if is_outside else "lie between"
        result = say("{be} {low} and {high} (80 % interval)", be=be, low=Objective(low), high=Objective(high))
    text = "If the study ran again in the same space with other random settings and seeds, its best {metric} would {result}."
    return join_items((_uncertainty_sentence(report), say(text, metric=Name(report.spec.objective.metric), result=result)), " ")


def _uncertainty_sentence(report: ReportData) -> Message:
    best, spread = report.best, report.spread
    if best is None:
        return Message(())
    lead = _lead_over_other_settings(report)
    if spread is None and lead is None:
        return say("A single trial cannot show how much of its result is chance.")
    if lead == 0:  # the sentence about the best value already states the tie
        return Message(())
    if spread is None:
        lead_text = "The best trial leads the next best setting by {lead}; without repeats, the noise of a result is unknown."
        return say(lead_text, lead=number(lead, 2))
    deviation, settings = number(spread.deviation, 2), count(spread.settings, "setting")
    repeats_text = "Repeats of a setting vary by {deviation} (standard deviation of {trials} trials in {settings})."
    repeats_sentence = say(repeats_text, deviation=deviation, trials=spread.trials, settings=settings)
    if best.mean is not None:
        return join_items((repeats_sentence, *_compare_setting_means(report)), " ")
    if lead is None:
        return repeats_sentence
    chance = ", which is less, so the order of the two settings may be chance" if lead < spread.deviation else ""
    lead_text = "{repeats} The best trial leads the next best setting by {lead}{chance}."
    return say(lead_text, repeats=repeats_sentence, lead=number(lead, 2), chance=chance)


def _compare_setting_means(report: ReportData) -> Iterator[Message]:
    best, spread = report.best, report.spread
    if best is None or best.mean is None or best.next_mean is None or spread is None:
        return
    lead = (best.next_mean.value - best.mean.value) * (1 if report.minimize else -1)
    standard_error = spread.deviation * math.sqrt(1 / best.mean.trials + 1 / best.next_mean.trials)
    yield say(
        "The mean of the best other setting is {gap} {worse} ({runs}, standard error of the difference {error}){chance}.",
        gap=number(abs(lead), 2),
        worse="worse" if lead >= 0 else "better",
        runs=count(best.next_mean.trials, "trial"),
        error=number(standard_error, 2),
        chance="; the difference may be chance" if abs(lead) < 2 * standard_error else "",
    )


def _lead_over_other_settings(report: ReportData) -> float | None:
    """Return the difference in results between the best trial and `_best_other_setting_trial`, or None without such a trial."""
    other_trial = _best_other_setting_trial(report)
    best = report.best
    return None if other_trial is None or other_trial.best is None or best is None else abs(other_trial.best - best.value)


def _tied_setting_count(report: ReportData) -> int:
    """Return the number of other settings with the best trial's result, but at least 1."""
    ranked = [t for _, t in report.ranked]
    tied_keys = {setting_key(t.params) for t in ranked if t.best == ranked[0].best} - {setting_key(ranked[0].params)}
    return max(len(tied_keys), 1)


def _best_other_setting_trial(report: ReportData) -> TrialRow | None:
    """Return the best trial of the other settings or, without another setting and without repeats, the second-best trial."""
    ranked = [t for _, t in report.ranked]
    second_best = ranked[1] if len(ranked) > 1 and report.spread is None else None
    return next((t for t in ranked[1:] if setting_key(t.params) != setting_key(ranked[0].params)), second_best)


def key_numbers(report: ReportData) -> tuple[tuple[str, str, str], ...]:
    """Return (label, value, note) for each key number below the headline."""
    best, other, searched = report.best, _best_other_setting_trial(report), len(report.spec.searched)
    if best is not None and best.mean is not None:
        best_value_note = f"mean of {best.mean.trials} repeats {number(best.mean.value)}"
    elif report.spread is not None:
        best_value_note = f"repeats vary by {number(report.spread.deviation, 2)}"
    elif other is not None:
        best_value_note = f"next best {number(other.best)}"
    else:
        best_value_note = "the only result" if best else "no trial with a result"
    positions = best_step_positions(report)
    median_position = (share(statistics.median(positions)), "of its training") if positions else (number(None), "unknown")
    return (
        (f"Best {shorten(report.spec.objective.metric, 36)}", number(best.value if best else None), best_value_note),
        _trial_count_entry(report),
        ("Hyperparameters searched", f"{searched}", _search_space_note(report, searched)),
        ("Best step, median trial" if len(positions) > 1 else "Best step", *median_position),
    )


def _trial_count_entry(report: ReportData) -> tuple[str, str, str]:
    counts = report.counts
    own = f"{counts.total - counts.earlier:,}"
    if counts.earlier:
        return "Trials", f"{own} + {counts.earlier:,}", f"{counts.earlier:,} from earlier rounds"
    failed_text = f"{counts.failed:,} without a result"
    compared = len(report.ranked)
    results_text = f"{compared:,} comparable" if compared < counts.feasible else f"{counts.feasible:,} with a result"
    return "Trials", own, failed_text if counts.failed else results_text


def _search_space_note(report: ReportData, searched: int) -> str:
    if not report.next_studies:
        return "none is varied" if searched == 0 else "in this study"
    old, new = completed_spec(report).parameters, report.next_studies[0].spec
    changed_count = sum(not is_same_domain(p, new.parameters.get(n)) for n, p in old.items())
    added_count = len(new.parameters.keys() - old.keys())
    change_texts = [f"{changed_count} to change" if changed_count else "", f"{added_count} to add" if added_count else ""]
    return ", ".join(p for p in change_texts if p) or "none to change"


def best_step_positions(report: ReportData) -> list[float]:
    """Return the best step of each comparable trial with several evaluations, as a position between 0 (start) and 1 (end)."""
    compared = [t for t in report.figures.trials if t.feasible and t.comparable and t.evaluations > 1]
    return [t.best_step / t.last_step for t in compared if t.best_step is not None and t.last_step]

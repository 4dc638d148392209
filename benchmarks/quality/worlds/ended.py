"""Situations about the ends of trials: pruned, stopped early, diverged, stuck, out of memory, continued by another run."""

from __future__ import annotations

from functools import partial

from advisor.tracking.runs import RunStatus
from worlds.failing import at_chance, collapsed_trial, failing_studies, not_a_number, out_of_memory, skipped_batches
from worlds.shortened import (
    chosen_length,
    crashing_trials,
    early_stopped,
    healthy,
    preempted_runs,
    pruned_by,
    repeats_with_seeds,
    time_limit,
)
from worlds.world import Outcome, Situation

MIN_TRIALS = 8
"""Minimum number of trials for a next study to count as a search of the space; the playbook's short probes have fewer."""


def _counts_pruned_as_crashed(outcome: Outcome) -> bool:
    """Return whether the report counts pruned trials as crashed, or does not mention that trials were pruned."""
    wrong = [s for s, true in zip(outcome.statuses(), outcome.made.truth["states"], strict=True) if true == "pruned" != s]
    crashed = outcome.fired("space-infeasible") and "crash" in outcome.text
    missed = len(wrong) > 0.1 * outcome.made.truth["states"].count("pruned")
    return bool("infeasible" in wrong and crashed) or missed or "pruned" not in outcome.text


def _plans_short_length(outcome: Outcome) -> bool:
    """Return whether a next study plans trials that are shorter than a complete trial."""
    if outcome.report is None:
        return True
    own = [s.spec.max_train_steps for s in outcome.report.next_studies if (s.spec.trials or 0) >= MIN_TRIALS]
    lengths = [outcome.report.spec.max_train_steps, *own]
    return any(n is None or n < 0.9 * outcome.made.truth["length"] for n in lengths)


def _excludes_optimum(outcome: Outcome) -> bool:
    """Return whether a proposed range excludes the best learning rate."""
    if outcome.report is None:
        return True
    ranges = [s.spec.parameters.get(outcome.made.truth["lr"]) for s in outcome.report.next_studies]
    best = outcome.made.truth["best_lr"]
    return any(p is not None and p.low is not None and p.high is not None and not p.low <= best <= p.high for p in ranges)


def _says_hardly_matters(outcome: Outcome) -> bool:
    """Return whether the report says that an important hyperparameter hardly matters."""
    return any(f.subject in outcome.made.truth["matters"] for f in outcome.fired("space-insensitive"))


def _misreads_how_trials_ended(outcome: Outcome) -> bool:
    """Return whether, for some kind of end, over a tenth of the trials are confused with other kinds, or whether trials are
    missing."""
    true, read = outcome.made.truth["states"], outcome.statuses()
    if len(true) != len(read):
        return True
    pairs = list(zip(true, read, strict=True))
    kinds = set(true) | set(read)
    return any(
        sum(r != t for t, r in pairs if kind in (t, r)) > 0.1 * max(sum(t == kind for t, _ in pairs), 5) for kind in kinds
    )


def _judges_best_step(outcome: Outcome) -> bool:
    """Return whether the report judges best steps although early stopping chose them, or does not mention early stopping."""
    stopped = outcome.made.truth["states"].count("early_stopped")
    if stopped < 5:
        return bool(outcome.fired("step-position"))
    return bool(outcome.fired("step-position")) or "checkpoint" not in outcome.text


def _counts_repeats(outcome: Outcome) -> bool:
    """Return whether a finding treats single runs as repeats of a setting. Findings about the noise of evaluations are excluded,
    because they need no repeats."""
    return any(f.subject != "evaluations" for f in outcome.fired("adopt", "tuning-saturated"))


def _names_no_region(outcome: Outcome) -> bool:
    """Return whether at least four trials failed and no rule says in which region of the space they failed."""
    failed = sum(state != "complete" for state in outcome.made.truth["states"])
    return failed >= 4 and not outcome.fired("space-infeasible", "space-boundary-infeasible")


_RANDOM_END = "a crash, a time limit or a chosen length is misread"
_PRUNERS: tuple[tuple[str, RunStatus], ...] = (
    ("median", "FAILED"),
    ("asha", "FAILED"),
    ("median", "KILLED"),
    ("asha", "FINISHED"),
    ("hyperband", "FAILED"),
)
SITUATIONS: tuple[Situation, ...] = (
    *(
        Situation(
            f"A01 pruned by {pruner}, {status}",
            "pruned trials count as crashed or are not reported",
            pruned_by(pruner, status),
            _counts_pruned_as_crashed,
        )
        for pruner, status in _PRUNERS
    ),
    Situation(
        "A02 pruned by ASHA", "a next study is shorter than complete trials", pruned_by("asha", "FAILED"), _plans_short_length
    ),
    Situation(
        "A02 pruned by median",
        "a next study is shorter than complete trials",
        pruned_by("median", "FAILED"),
        _plans_short_length,
    ),
    Situation(
        "A02 pruned by Hyperband, budgets noted",
        "a next study is shorter than complete trials",
        pruned_by("hyperband", "FINISHED", budgets=True),
        _plans_short_length,
    ),
    Situation(
        "A03 ASHA, high rates lead early",
        "a proposed range leaves the optimum out",
        pruned_by("asha", "FAILED", early_lead=0.5),
        _excludes_optimum,
    ),
    Situation(
        "A03 ASHA, another hyperparameter matters",
        "a hyperparameter that matters is called unimportant",
        pruned_by("asha", "FAILED", early_lead=0.5, dropout_weight=0.155),
        _says_hardly_matters,
    ),
    Situation(
        "A04 stopped early by patience", "best steps are judged, or stopping is not reported", early_stopped, _judges_best_step
    ),
    Situation("A04 stopped early by patience, status", "a trial's end is misread", early_stopped, _misreads_how_trials_ended),
    Situation(
        "A05 preempted and continued",
        "a continuation counts as a repeat",
        preempted_runs,
        lambda o: _misreads_how_trials_ended(o) or _counts_repeats(o),
    ),
    Situation("A05 two seeds for each setting (control)", "repeats are joined", repeats_with_seeds, _misreads_how_trials_ended),
    Situation(
        "A06 training loss ends NaN, objective finite",
        "a trial's end is misread",
        failing_studies(not_a_number),
        _misreads_how_trials_ended,
    ),
    Situation(
        "A06 training loss ends NaN: where", "no region of failures is named", failing_studies(not_a_number), _names_no_region
    ),
    Situation(
        "A06 skipped batches, broken loss (control)", "a healthy trial is misread", skipped_batches, _misreads_how_trials_ended
    ),
    Situation("A07 stuck at chance", "a trial's end is misread", failing_studies(at_chance), _misreads_how_trials_ended),
    Situation("A07 stuck at chance: where", "no region of failures is named", failing_studies(at_chance), _names_no_region),
    Situation(
        "A08 collapse to a constant", "a trial's end is misread", failing_studies(collapsed_trial), _misreads_how_trials_ended
    ),
    Situation(
        "A09 out of memory, error text",
        "no limit of the batch size",
        out_of_memory,
        lambda o: _misreads_how_trials_ended(o) or _names_no_region(o),
    ),
    Situation(
        "A09 out of memory, nothing logged",
        "memory is not named, or no limit of the batch size",
        partial(out_of_memory, with_error=False),
        lambda o: _misreads_how_trials_ended(o) or _names_no_region(o) or "ran out of memory" not in o.text,
    ),
    Situation("A10 random crashes (control)", _RANDOM_END, crashing_trials, _misreads_how_trials_ended),
    Situation("A10 time limit (control)", _RANDOM_END, time_limit, _misreads_how_trials_ended),
    Situation("A10 length as a hyperparameter (control)", _RANDOM_END, chosen_length, _misreads_how_trials_ended),
    Situation("A10 healthy trials (control)", "a healthy trial is misread", healthy, _misreads_how_trials_ended),
)

"""Determines how each trial ended, from tags (such as `advisor.status`, which users can set), processes and curves."""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from advisor import contract
from advisor.contract.guard_stop import GuardStop, read_guard_stop
from advisor.model.reading import Decision
from advisor.model.space import BoolArray, Params, as_number, words_of_name
from advisor.model.spec import Objective
from advisor.model.study import CurveBlocks, TrialStatus
from advisor.model.words import count
from advisor.tracking.runs import Run
from advisor.tracking.study import short_runs
from advisor.tracking.study.early_failures import find_launch_failures, find_memory_failures
from advisor.tracking.study.objective_costs import ObjectiveCosts
from advisor.tracking.study.silent_failures import TrialEnd, find_silent_failures

_TAG_STATUSES: set[TrialStatus] = {"complete", "early_stopped", "pruned", "diverged", "not_learned", "infeasible", "no_data"}
"""Not "stopped", because a hook does not know why training ended early, nor a hook's "complete", because a tuner may have
shortened the plan."""
_ERROR_WORDS = frozenset("error errors exception traceback failure note".split())
_OUT_OF_MEMORY_PATTERN = re.compile(
    r"out of memory|outofmemory|\boom\b|resource_exhausted|cannot allocate memory|memoryerror", re.I
)
_STATUS_OVERRIDE = f"the tag `{contract.TAG_STATUS}` on a run"


@dataclass(frozen=True, slots=True)
class TrialEnds:
    ends: tuple[TrialEnd, ...]
    """How each trial ended, shape (trials,)."""
    errors: Mapping[int, str]
    """Logged error texts by trial, starting with "out of memory" if memory ran out."""
    decisions: tuple[Decision, ...]


def find_trial_ends(
    runs: Sequence[Run],
    blocks: CurveBlocks,
    costs: ObjectiveCosts,
    objective: Objective,
    params: Sequence[Params],
    *,
    lengths: Collection[str] = (),
    steps_are_epochs: bool = False,
) -> TrialEnds:
    """params: hyperparameters of each trial; lengths: those that are the length of training."""
    errors = {i: text for i, run in enumerate(runs) if (text := _error_text(run))}
    ends_from_tags = {i: _end_from_tags(run, objective.metric, i in errors, len(costs.curves[i])) for i, run in enumerate(runs)}
    guard_stops = _guard_stops(runs)
    # A run that the guard stopped may look like a crash until the launcher has recorded the stop.
    recorded_ends = {i: end for i, end in ends_from_tags.items() if end is not None}
    recorded_ends |= {i: _end_by_guard(runs[i], stop) for i, stop in guard_stops.items()}
    crashed_trials = [i for i, end in recorded_ends.items() if end.status == "infeasible"]
    launch_failures = find_launch_failures(runs, blocks, errors, crashed_trials)
    recorded_ends |= {i: TrialEnd("no_data", "its launch failed") for i in launch_failures}
    unexplained_crashes = set(crashed_trials) - errors.keys() - set(launch_failures)
    lacking, of_memory = find_memory_failures(blocks, params, unexplained_crashes, [run.started for run in runs])
    recorded_ends |= {i: TrialEnd("infeasible", "the trial probably ran out of memory") for i in lacking}
    rest = [i for i in range(len(runs)) if i not in recorded_ends]
    examples = max((n for run in runs if (n := as_number(run.tags.get(contract.TAG_N_VALID, ""))) > 0), default=math.inf)
    failures = find_silent_failures(blocks, costs, rest, _logged_cost_of_guessing(runs, objective), examples)
    rest = [i for i in rest if i not in failures]
    short = short_runs.find_short_trials(costs, params, steps_are_epochs=steps_are_epochs)
    searched = short_runs.length_is_searched(params, lengths)
    stopped, patience = _find_shortened_trials(runs, blocks, costs, params, rest, is_short=short, length_is_searched=searched)
    known_ends = recorded_ends | failures | stopped
    trial_ends = tuple(known_ends[i] if i in known_ends else TrialEnd(_process_status(runs[i])) for i in range(len(runs)))
    decisions = _decisions(trial_ends, set(failures), patience, guard_stops)
    decisions += _launch_failure_decision(len(runs), [errors.get(i, "") for i in launch_failures])
    decisions += [*of_memory, *_failed_evaluations_decision(trial_ends, costs)]
    return TrialEnds(trial_ends, errors | lacking, tuple(decisions))


def _logged_cost_of_guessing(runs: Sequence[Run], objective: Objective) -> float | None:
    for run in runs:
        with contextlib.suppress(ValueError, TypeError, KeyError, RecursionError):
            value = float(json.loads(run.tags[contract.TAG_CHANCE_LEVEL])[objective.metric])
            return value if objective.direction == "minimize" else -value
    return None


def _end_from_tags(run: Run, objective: str, error: bool, evaluations: int) -> TrialEnd | None:
    tag = run.tags.get(contract.TAG_STATUS)
    if tag in (None, "infeasible") and _was_pruned(run):
        return TrialEnd("pruned")
    for status in _TAG_STATUSES:
        if status == "no_data" and evaluations and run.tags.get(contract.TAG_OBJECTIVE, objective) != objective:
            continue  # the training or its study file named a different objective, which was never logged
        if tag == status and not (status == "complete" and contract.TAG_SCHEMA in run.tags):
            return TrialEnd(status)
    if run.status in ("RUNNING", "SCHEDULED"):
        return TrialEnd("running")
    if error and run.status == "FAILED":
        return TrialEnd("infeasible")
    if not evaluations:
        return TrialEnd("infeasible" if run.status == "FAILED" or error else "no_data")
    return None


def _guard_stops(runs: Sequence[Run]) -> dict[int, GuardStop]:
    """Return the guard's stops by trial, except of trials that still reached their planned end."""
    stopped_runs = [i for i, run in enumerate(runs) if run.tags.get(contract.TAG_STATUS) != "complete"]
    records = ((i, read_guard_stop(runs[i].tags.get(contract.TAG_GUARD_STOP))) for i in stopped_runs)
    return {i: stop for i, stop in records if stop is not None}


def _end_by_guard(run: Run, stop: GuardStop) -> TrialEnd:
    has_diverged = "diverged" in (run.tags.get(contract.TAG_STATUS), stop.status)
    return TrialEnd("diverged" if has_diverged else "pruned", f"the guard stopped it at step {stop.step:,}: {stop.reason}")


def _was_pruned(run: Run) -> bool:
    return any(
        (v.upper().endswith("PRUNED") and words_of_name(k)[-1:] in (["state"], ["status"]))
        or ("TrialPruned" in v and _ERROR_WORDS & set(words_of_name(k)))
        for k, v in run.tags.items()
    )


def _error_text(run: Run) -> str:
    """Return the error in the run's tags, which starts with "out of memory" if memory ran out, or ""."""
    error_texts = [
        v for k, v in run.tags.items() if v.strip() and _ERROR_WORDS & set(words_of_name(k)) and "note" not in words_of_name(k)
    ]
    memory_notes = [v for k, v in run.tags.items() if "note" in words_of_name(k) and _OUT_OF_MEMORY_PATTERN.search(v)]
    text = next(iter(error_texts + memory_notes), "").strip()
    return f"out of memory: {text}" if _OUT_OF_MEMORY_PATTERN.search(text) and not text.startswith("out of memory") else text


def _process_status(run: Run) -> TrialStatus:
    """Return the status of a trial whose curves show no failure."""
    if run.status == "FAILED":
        return "infeasible"
    return "stopped" if run.status == "KILLED" or run.tags.get(contract.TAG_STATUS) == "stopped" else "complete"


def _find_shortened_trials(
    runs: Sequence[Run],
    blocks: CurveBlocks,
    costs: ObjectiveCosts,
    params: Sequence[Params],
    trials: Sequence[int],
    *,
    is_short: BoolArray,
    length_is_searched: bool,
) -> tuple[dict[int, TrialEnd], short_runs.EarlyStoppingPatience | None]:
    by_status: dict[TrialStatus, list[int]] = {"complete": [], "stopped": [], "infeasible": []}
    for trial in trials:
        by_status[_process_status(runs[trial])].append(trial)
    patience = short_runs.find_early_stopped_trials(blocks, costs, by_status["complete"] + by_status["stopped"], is_short)
    ends: dict[int, TrialEnd] = {}
    if patience is not None:
        why = f"it ended {patience.evaluations_without_improvement} evaluations after its best {patience.metric}"
        ends = {t: TrialEnd("early_stopped", why) for t in patience.stopped_trials}
    failed, killed, finished = (
        [t for t in by_status[w] if is_short[t] and t not in ends] for w in ("infeasible", "stopped", "complete")
    )
    for trial in short_runs.find_pruned_trials(
        blocks, costs, params, (failed, killed), finished=finished, length_is_searched=length_is_searched
    ):
        step = int(costs.curves[trial].steps[-1])
        ends[trial] = TrialEnd("pruned", f"it ended at step {step:,} with a worse result than the trials that continued")
    return ends, patience


def _decisions(
    ends: Sequence[TrialEnd],
    failed: set[int],
    patience: short_runs.EarlyStoppingPatience | None,
    guard_stops: Mapping[int, GuardStop],
) -> list[Decision]:
    decisions = _pruning_decision(ends, guard_stops)
    if guard_stops:
        reasons = Counter(stop.stop_reason_phrase for stop in guard_stops.values()).most_common()
        causes = ", ".join(f"{n} {predicate}" for predicate, n in reasons)
        text = f"The guard stopped {len(guard_stops)} of {len(ends)} trials: {causes}."
        decisions.append(Decision(topic="status", text=f"{text} `advisor run … --continue TRIAL` continues one of them."))
    if patience is not None:
        when = f"stopped early, {patience.evaluations_without_improvement} evaluations after their best {patience.metric}"
        text = (
            f"{len(patience.stopped_trials)} of {len(ends)} trials {when}. If you keep checkpoints, train to the planned end and "
            "choose the best one afterwards: early stopping is then unnecessary, and the curves show how long to train."
        )
        decisions.append(Decision(topic="status", text=text, overrule=_STATUS_OVERRIDE))
    for status, words in (("diverged", "diverged"), ("not_learned", "learned nothing")):
        shown_reasons = [ends[t].reason for t in sorted(failed) if ends[t].status == status]
        if shown_reasons:
            example = shown_reasons[0] if len(shown_reasons) == 1 else f"in one of them, for example, {shown_reasons[0]}"
            text = f"{len(shown_reasons)} of {len(ends)} trials {words} by their curves: {example}."
            decisions.append(Decision(topic="status", text=text, overrule=_STATUS_OVERRIDE))
    return decisions


def _pruning_decision(ends: Sequence[TrialEnd], guard_stops: Mapping[int, GuardStop]) -> list[Decision]:
    pruned_trials = {t for t, end in enumerate(ends) if end.status == "pruned"}
    if not pruned_trials:
        return []
    is_inferred = any(ends[t].reason for t in pruned_trials - guard_stops.keys())
    how = ": they ended with worse results than the trials that continued, without an error" if is_inferred else ""
    if guarded := pruned_trials & guard_stops.keys():
        how = " by the guard" if guarded == pruned_trials else f", {len(guarded)} of them by the guard"
    verb = "was" if len(pruned_trials) == 1 else "were"
    text = (
        f"{len(pruned_trials)} of {len(ends)} trials {verb} pruned{how}. Their results are not compared with those of complete "
        "trials. Pruning can hide settings that start slowly."
    )
    return [Decision(topic="status", text=text, overrule=_STATUS_OVERRIDE)]


def _launch_failure_decision(trials: int, errors: Sequence[str]) -> list[Decision]:
    if not errors:
        return []
    example = next((f", with {error!r}" for error in errors if error), "")
    text = (
        f"{len(errors)} of {trials} trials ended before their first step{example}. No hyperparameter causes this, so they do not "
        "count as failures of the search space. Fix the cause; then `advisor run` with the same study trains these trials again."
    )
    return [Decision(topic="status", text=text)]


def _failed_evaluations_decision(ends: Sequence[TrialEnd], costs: ObjectiveCosts) -> list[Decision]:
    trained_curves = [c for end, c in zip(ends, costs.curves, strict=True) if end.status not in ("diverged", "infeasible")]
    missing_counts = [len(c) - len(c.finite) for c in trained_curves if len(c) > len(c.finite) > 0]
    if not missing_counts:
        return []
    total = sum(missing_counts)
    subject = f"{count(total, 'evaluation')} of {costs.metric} {'is' if total == 1 else 'are'}"
    where = f"{count(len(missing_counts), 'trial')} whose training continued"
    text = f"{subject} not finite, in {where}. They are omitted; check the evaluation at these steps."
    return [Decision(topic="status", text=text)]

"""The command `advisor gate`."""

from __future__ import annotations

import math
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Literal

import click

from advisor.cli.brief import bounded_answer_json as brief_json, brief_option, markdown_option, write_markdown_file
from advisor.cli.compare import ExperimentCache
from advisor.cli.options import direction_option, objective_option, options_as_dataclass, tracking_option
from advisor.history import fairness
from advisor.history.answer import MAX_RUNS_PER_SETTING, Answer, GateQuestion, Side, percent_text
from advisor.history.gate import answer_for_study, make_gate_record
from advisor.history.proposals import Decision, updated_tag_text
from advisor.model.errors import AdvisorError
from advisor.model.reading import Reading
from advisor.model.study import Study
from advisor.model.words import clean, count, number
from advisor.tracking.gate_record import write_gate_record

_BADGE_COLORS: dict[Decision, str] = {"keep": "brightgreen", "discard": "red", "not decided": "yellow"}


@click.command()
@options_as_dataclass(
    "question",
    GateQuestion,
    click.argument("candidate"),
    click.option(
        "--against", metavar="INCUMBENT", help="Setting to replace.  [default: last one kept, else best with repeats]"
    ),
    tracking_option,
    click.option("--experiment", "-e", metavar="NAME", help="Experiment of both settings.  [default: the store's only one]"),
    objective_option,
    direction_option,
    click.option(
        "--worthwhile",
        metavar="GAIN",
        help="Smallest gain worth finding: 0.002 (in units of the objective) or 1%.  [default: 1.4 times the noise between seeds]",
    ),
    click.option("--at-most", multiple=True, metavar="METRIC=VALUE", help="Discard CANDIDATE if METRIC is larger."),
    click.option("--at-least", multiple=True, metavar="METRIC=VALUE", help="Discard CANDIDATE if METRIC is smaller."),
    click.option(
        "--allow-more",
        "allow",
        multiple=True,
        type=click.Choice(sorted(fairness.BUDGET_TOLERANCES)),
        help="Allow CANDIDATE to use more of this kind of budget than INCUMBENT.",
    ),
    click.option(
        "--alone",
        is_flag=True,
        help="Judge this proposal alone and record nothing; the error rates then hold for this answer only.",
    ),
    click.option(
        "--max-seeds",
        type=click.IntRange(min=2, max=1000),
        default=MAX_RUNS_PER_SETTING,
        show_default=True,
        help="Maximum number of runs per setting; CANDIDATE is discarded if these runs allow no decision.",
    ),
)
@click.option("--record/--no-record", default=True, help="Store the answer in the tag advisor.gate of CANDIDATE's first run.")
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
@brief_option
@markdown_option
def gate(
    question: GateQuestion,
    tracking_uri: str | None,
    experiment: str | None,
    objective: str | None,
    direction: Literal["minimize", "maximize"] | None,
    record: bool,
    as_json: bool,
    brief: bool,
    markdown: Path | None,
) -> None:
    """Decide about a proposal: keep CANDIDATE, discard it, or run more seeds first.

    CANDIDATE and INCUMBENT are settings: a run's name or id, a git commit, or NAME=VALUE,... of parameters and tags. Runs with
    the same hyperparameters and commit are repeats of one setting.

    Use the gate after every run and for every proposal. Then, on average, at most 5 % of the settings that the gate keeps in an
    experiment are no better than the settings that they replaced. The gate discards a worthwhile candidate with a probability of at
    most 20 %. The bound of 20 % does not hold once both settings have --max-seeds runs, because an undecided CANDIDATE is then
    discarded.

    \b
    Exit status: 0 keep, 1 discard, 3 not decided (the first line says which seeds to run), 2 error.

    \b
    advisor gate trial-17                                against the last kept setting
    advisor gate 3f2a91c --against baseline              a commit against a run and its repeats
    advisor gate lr=0.2 --at-most peak_memory=24e9       a setting that must fit into 24 GB
    """
    experiments = ExperimentCache(tracking_uri, objective, direction, Reading(population="all"))
    answer = answer_gate_question(experiments, question, experiment, record=record)
    if markdown is not None:
        write_markdown_file(_answer_as_markdown(answer), markdown)
    answer_text = "\n".join([clean(answer.action), "", *_answer_detail_lines(answer)])
    click.echo(short_gate_json(answer) if brief else answer.ascii_json() if as_json else answer_text)
    sys.exit(answer.exit_status)


def answer_gate_question(
    experiments: ExperimentCache, question: GateQuestion, experiment: str | None, *, record: bool
) -> Answer:
    """Return the gate's answer, and store the answer in MLflow if `record`. Raises AdvisorError if the question is ambiguous."""
    place, candidate = _locate_candidate(question.candidate, experiment, experiments)
    study = experiments.read_once(place)
    answer = answer_for_study(study, replace(question, candidate=candidate), place)
    # With `--alone`, the gate judges this proposal as the only one, so the answer must not count for later proposals.
    return _record_answer(answer, study, experiments.tracking_uri) if record and not question.alone else answer


def short_gate_json(answer: Answer) -> str:
    leading_keys = {n: getattr(answer, n) for n in ("action", "schema_version", "decision")}
    return brief_json({**leading_keys, "run": (), **answer.model_dump(exclude_defaults=True)}, always=("run",))


def _locate_candidate(candidate: str, experiment: str | None, experiments: ExperimentCache) -> tuple[str, str]:
    """Return (experiment, candidate). Without --experiment, the text `candidate` may be EXPERIMENT:CANDIDATE."""
    experiment = experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME")
    if experiment is not None:
        return experiment, candidate
    name, part = experiments.split_setting(candidate)
    if part and experiments.experiment_names is not None and name in experiments.experiment_names:
        return name, part
    candidates = [n for n in experiments.experiment_names or () if n != "Default"] or list(experiments.experiment_names or ())
    if len(candidates) != 1:
        listed_names = ", ".join(candidates[:5]) or "none"
        raise AdvisorError(f"pass --experiment NAME; the store has {count(len(candidates), 'experiment')}: {listed_names}")
    return candidates[0], candidate


def _record_answer(answer: Answer, study: Study, tracking_uri: str | None) -> Answer:
    """Store the answer in MLflow. If storing fails, add a warning: the next call may choose a wrong default incumbent."""
    earlier = next(t.facts.get("gate", "") for t in study.trials if t.id == answer.candidate.run)
    try:
        write_gate_record(answer.candidate.run, updated_tag_text(make_gate_record(answer), earlier), tracking_uri=tracking_uri)
    except AdvisorError as error:
        warning = f"MLflow could not store this answer, so later answers ignore it; pass --against next time ({error})."
        return answer.model_copy(update={"notes": (*answer.notes, warning)})
    return answer.model_copy(update={"recorded": True})


def _answer_detail_lines(answer: Answer) -> list[str]:
    label_rows = [("candidate", _setting_text(answer.candidate))]
    label_rows.append(("incumbent", f"{_setting_text(answer.incumbent)}, {answer.incumbent_is}"))
    if answer.changed:
        label_rows.append(("changed", "; ".join(answer.changed[:6])))
    if answer.gain is not None:
        low, high = (number(x, 3) for x in answer.interval or (-math.inf, math.inf))
        gain_text = f"{number(answer.gain, 3)} (95 % interval {low} to {high}, valid at every look) in {answer.metric}"
        noise_text = f"{number(answer.noise, 3)} between seeds ({answer.noise_freedom} degrees of freedom)"
        power = f"a gain of {number(answer.worthwhile, 3)} is worthwhile, with {percent_text(answer.chance or 0)} probability"
        evidence = f"to keep {_evidence_text(answer.evidence_to_keep)}, to discard {_evidence_text(answer.evidence_to_discard)}"
        question_text = f"proposal {answer.question} in this experiment, {answer.kept_before} kept so far"
        label_rows += [
            ("gain", f"{gain_text}, {answer.direction}d"),
            ("noise", f"{noise_text}; {power}"),
            ("evidence", f"{evidence} of the required evidence ({question_text})"),
        ]
    for limit in answer.limits:
        bound_text = f"at most {number(limit.at_most)}" if limit.at_most is not None else f"at least {number(limit.at_least)}"
        label_rows.append(("limit", f"{limit.metric} {bound_text}: {number(limit.value)}"))
    label_rows += [("note", text) for text in answer.notes]
    return [f"{label:11} {clean(text)}" for label, text in label_rows]


def _answer_as_markdown(answer: Answer) -> str:
    # imported here, because it loads the whole report
    from advisor.report.formats.markdown import escape_markdown, fenced_code_lines

    action = answer.action.removesuffix(answer.reason)
    decision_label = answer.decision.replace(" ", "_")
    badge_markup = f"![advisor gate: {answer.decision}](https://img.shields.io/badge/advisor_gate-{decision_label}-{_BADGE_COLORS[answer.decision]})"
    head_lines = [badge_markup, "", f"## {escape_markdown(action)}", "", escape_markdown(answer.reason), ""]
    return "\n".join([*head_lines, *fenced_code_lines("text", _answer_detail_lines(answer)), ""])


def _evidence_text(share: float | None) -> str:
    return f"{number(100 * min(share or 0.0, 1.0), 2)} %"


def _setting_text(side: Side) -> str:
    value_text = f"{number(side.value)} " if side.value is not None else ""
    other_runs = [f"{n} {what}" for n, what in ((side.failed, "failed"), (side.running, "running")) if n]
    commit_text = f", commit {side.commit[:12]}" if side.commit else ""
    return f"{value_text}{side.name} ({', '.join([count(side.runs, 'run'), *other_runs])}{commit_text})"

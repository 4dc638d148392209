"""The command `advisor gate`."""

from __future__ import annotations

import math
import os
import sys
from dataclasses import replace
from typing import Literal

import click

from advisor.cli.brief import brief as brief_json
from advisor.cli.brief import brief_option
from advisor.cli.compare import Experiments
from advisor.cli.options import direction_option, objective_option, tracking_option
from advisor.history import fairness
from advisor.history.answer import Answer, Side, percent
from advisor.history.gate import MAX_SEEDS, Question, ask, record_of
from advisor.history.proposals import as_tag
from advisor.model.errors import AdvisorError
from advisor.model.reading import Reading
from advisor.model.study import Study
from advisor.model.words import clean, count, number
from advisor.tracking.gate_record import write_record


@click.command()
@click.argument("candidate")
@click.option("--against", metavar="INCUMBENT", help="Setting to replace.  [default: last kept, else best repeated]")
@tracking_option
@click.option("--experiment", "-e", metavar="NAME", help="Experiment with both.  [default: the only one]")
@objective_option
@direction_option
@click.option(
    "--worthwhile",
    metavar="GAIN",
    help="Smallest gain worth finding: 0.002 (in units of the objective) or 1%.  [default: 1.4 deviations between seeds]",
)
@click.option("--at-most", multiple=True, metavar="METRIC=VALUE", help="Discard CANDIDATE if METRIC is larger.")
@click.option("--at-least", multiple=True, metavar="METRIC=VALUE", help="Discard CANDIDATE if METRIC is smaller.")
@click.option(
    "--allow-more",
    multiple=True,
    type=click.Choice(sorted(fairness.TOLERANCE)),
    help="Allow CANDIDATE a larger budget of this kind.",
)
@click.option(
    "--alone",
    is_flag=True,
    help="Count no other proposals, and record nothing: the promise holds for this question only.",
)
@click.option(
    "--max-seeds",
    type=click.IntRange(min=2, max=1000),
    default=MAX_SEEDS,
    show_default=True,
    help="Maximum number of runs of a setting; without a decision by then, CANDIDATE is discarded.",
)
@click.option(
    "--record/--no-record", default=True, help="Note the answer in the tag advisor.gate of CANDIDATE's first run."
)
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
@brief_option
def gate(
    candidate: str,
    against: str | None,
    tracking_uri: str | None,
    experiment: str | None,
    objective: str | None,
    direction: Literal["minimize", "maximize"] | None,
    worthwhile: str | None,
    at_most: tuple[str, ...],
    at_least: tuple[str, ...],
    allow_more: tuple[str, ...],
    alone: bool,
    max_seeds: int,
    record: bool,
    as_json: bool,
    brief: bool,
) -> None:
    """Decide about a proposal: keep CANDIDATE, discard it, or run more seeds first.

    CANDIDATE and INCUMBENT are settings: a run's name or id, a git commit, or NAME=VALUE,... of parameters and tags. Runs with the
    same hyperparameters and commit are repeats of one setting.

    Ask after every run, and about every proposal: of all settings that the gate keeps in an experiment, on average at most 5 % are
    no better than what they replaced. A worthwhile gain is discarded with probability 20 % at most until both settings have
    --max-seeds runs; then CANDIDATE is discarded.

    \b
    Exit status: 0 keep, 1 discard, 3 not decided (the first line says which seeds to run), 2 error.

    \b
    advisor gate trial-17                                against the last kept setting
    advisor gate 3f2a91c --against baseline              a commit against a run and its repeats
    advisor gate lr=0.2 --at-most peak_memory=24e9       a setting that must fit into 24 GB
    """
    experiments = Experiments(tracking_uri, objective, direction, Reading(population="all"))
    question = Question(candidate, against, worthwhile, at_most, at_least, allow_more, alone, max_seeds)
    answer = answer_question(experiments, question, experiment, record=record)
    click.echo(brief_answer(answer) if brief else answer.ascii_json() if as_json else _text(answer))
    sys.exit(answer.exit_status)


def answer_question(experiments: Experiments, question: Question, experiment: str | None, *, record: bool) -> Answer:
    """Return the gate's answer to a question, noted in the store if `record`. Raises AdvisorError if the question is not clear."""
    place, candidate = _place(question.candidate, experiment, experiments)
    study = experiments.read(place)
    answer = ask(study, replace(question, candidate=candidate), place)
    # An answer that counts no other proposals must not count for them.
    return _recorded(answer, study, experiments.tracking_uri) if record and not question.alone else answer


def brief_answer(answer: Answer) -> str:
    """Return the answer as a short line of JSON."""
    first = {n: getattr(answer, n) for n in ("action", "schema_version", "decision")}
    return brief_json({**first, "run": (), **answer.model_dump(exclude_defaults=True)}, always=("run",))


def _place(candidate: str, experiment: str | None, experiments: Experiments) -> tuple[str, str]:
    """Return the experiment and the candidate in it. Without the option, the candidate may be EXPERIMENT:CANDIDATE."""
    experiment = experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME")
    if experiment is not None:
        return experiment, candidate
    name, part = experiments.split(candidate)
    if part and experiments.names is not None and name in experiments.names:
        return name, part
    others = [n for n in experiments.names or () if n != "Default"] or list(experiments.names or ())
    if len(others) != 1:
        some = ", ".join(others[:5]) or "none"
        raise AdvisorError(f"pass --experiment NAME; the store has {count(len(others), 'experiment')}: {some}")
    return others[0], candidate


def _recorded(answer: Answer, study: Study, tracking_uri: str | None) -> Answer:
    """Note the answer in the store. Without that, the answer is right, but the next default incumbent may be another setting."""
    former = next(t.facts.get("gate", "") for t in study.trials if t.id == answer.candidate.run)
    try:
        write_record(answer.candidate.run, as_tag(record_of(answer), former), tracking_uri=tracking_uri)
    except AdvisorError as error:
        note = f"The store does not take notes, so keeps and looks are not counted; pass --against next time ({error})."
        return answer.model_copy(update={"notes": (*answer.notes, note)})
    return answer.model_copy(update={"recorded": True})


def _text(answer: Answer) -> str:
    lines = [answer.action, "", f"candidate   {_side(answer.candidate)}"]
    lines.append(f"incumbent   {_side(answer.incumbent)}, {answer.incumbent_is}")
    if answer.changed:
        lines.append(f"changed     {'; '.join(answer.changed[:6])}")
    if answer.gain is not None:
        low, high = (number(x, 3) for x in answer.interval or (-math.inf, math.inf))
        lines += [
            f"gain        {number(answer.gain, 3)} (95 % interval {low} to {high}, valid at every look) in {answer.metric}, "
            f"{answer.direction}d",
            f"noise       {number(answer.noise, 3)} between seeds ({answer.noise_freedom} degrees of freedom); a gain of "
            f"{number(answer.worthwhile, 3)} is worthwhile, with {percent(answer.chance or 0)} probability",
            f"evidence    to keep {_evidence(answer.evidence_to_keep)}, to discard {_evidence(answer.evidence_to_discard)} "
            f"of what is needed (setting {answer.question} of the loop, {answer.kept_before} kept before)",
        ]
    for limit in answer.limits:
        bound = (
            f"at most {number(limit.at_most)}" if limit.at_most is not None else f"at least {number(limit.at_least)}"
        )
        lines.append(f"limit       {limit.metric} {bound}: {number(limit.value)}")
    lines += [f"note        {text}" for text in answer.notes]
    return "\n".join(clean(line) if line else line for line in lines)


def _evidence(share: float | None) -> str:
    return f"{number(100 * min(share or 0.0, 1.0), 2)} %"


def _side(side: Side) -> str:
    value = f"{number(side.value)} " if side.value is not None else ""
    more = [f"{n} {what}" for n, what in ((side.failed, "failed"), (side.running, "running")) if n]
    commit = f", commit {side.commit[:12]}" if side.commit else ""
    return f"{value}{side.name} ({', '.join([count(side.runs, 'run'), *more])}{commit})"

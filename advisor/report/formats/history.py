"""Renders the output of `advisor history`: the rounds of each lineage, and the share of predictions that came true. A lineage is
a chain of studies; each study continues the one before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from advisor.history.model import History, HitRate, Round
from advisor.model.words import align_columns, clean, count, number, sentence, shorten
from advisor.report.formats.markdown import escape_markdown
from advisor.report.text.history import JUDGEMENTS, hit_rate_text, row

_ROUND_COLUMN_NAMES = ("round", "study", "trials", "best", "best so far")
_EMPTY_TEXT = "No study of this store continues another study. Run a study from next/ with `advisor run`, then analyze it."


def render_plain_history(histories: Sequence[History], rates: Sequence[HitRate], lineages: int) -> Iterator[str]:
    if not histories:
        yield _EMPTY_TEXT
    for history in histories:
        yield clean(_lineage_title(history))
        rows = [_ROUND_COLUMN_NAMES, *(tuple(shorten(cell, 48) for cell in row(r)) for r in history.rounds)]
        yield from (f"  {line}" for line in align_columns(rows))
        for indent, line in (part for r in history.rounds for part in _round_detail_lines(r)):
            yield "  " * (1 + indent) + clean(line)
        yield from (f"  {clean(sentence(line))}" for line in _lineage_remark_sentences(history))
        yield ""
    if rates:
        yield f"{_hit_rates_title(lineages)}:"
        yield from (f"  {clean(hit_rate_text(r))}" for r in rates)


def render_markdown_history(histories: Sequence[History], rates: Sequence[HitRate], lineages: int) -> Iterator[str]:
    if not histories:
        yield escape_markdown(_EMPTY_TEXT)
    for history in histories:
        yield f"## {escape_markdown(_lineage_title(history))}"
        yield ""
        yield f"| {' | '.join(_ROUND_COLUMN_NAMES)} |"
        yield "|---|---|---|---|---|"
        yield from (f"| {' | '.join(escape_markdown(cell) for cell in row(r))} |" for r in history.rounds)
        yield ""
        details = [line for r in history.rounds for _, line in _round_detail_lines(r)]
        yield from (f"- {escape_markdown(line)}" for line in (*details, *_lineage_remark_sentences(history)))
        yield ""
    if rates:
        yield f"## {_hit_rates_title(lineages)}"
        yield ""
        yield from (f"- {escape_markdown(hit_rate_text(r))}" for r in rates)


def _hit_rates_title(lineages: int) -> str:
    return f"How often predictions came true, over {count(lineages, 'lineage')}"


def _lineage_title(history: History) -> str:
    first, last, objective = history.rounds[0], history.rounds[-1], history.objective
    progress_text = f"{number(first.best)} at first, {number(last.incumbent)} now"
    return f"{first.study}: {count(len(history.rounds), 'round')}, {objective.direction} {objective.metric}: {progress_text}"


def _lineage_remark_sentences(history: History) -> tuple[str, ...]:
    return (*history.said, *((history.stop,) if history.stop else ()))


def _round_detail_lines(round: Round) -> Iterator[tuple[int, str]]:
    if not round.changed and not round.outcomes:
        return
    yield 0, f"Round {round.number}" + (f", {round.goal}" if round.goal else "")
    yield from ((1, line) for line in round.changed)
    yield from ((1, f"because: {line}") for line in round.why)
    for o in round.outcomes:
        yield 1, f"{JUDGEMENTS[o.judged]}: {o.predicted} [{o.prediction.rule}]; {o.observed}"

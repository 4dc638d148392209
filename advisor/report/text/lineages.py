"""What `advisor history` prints: the rounds of each lineage, and how often predictions came true."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from advisor.history import History, HitRate, Round
from advisor.model.words import clean, count, number, sentence, shorten
from advisor.report.formats.markdown import md
from advisor.report.text.rounds import rate, row

_HEADS = ("round", "study", "trials", "best", "best so far")
_NONE = "No study of this store follows from another one: run a study of next/ with `advisor run`, then analyze it."


def plain(histories: Sequence[History], rates: Sequence[HitRate], lineages: int) -> Iterator[str]:
    """The lines of `advisor history` for a terminal."""
    if not histories:
        yield _NONE
    for history in histories:
        yield clean(_title(history))
        rows = [_HEADS, *(tuple(clean(shorten(cell, 48)) for cell in row(r)) for r in history.rounds)]
        widths = [max(len(cells[i]) for cells in rows) for i in range(len(_HEADS))]
        for cells in rows:
            yield "  " + "  ".join(c.ljust(w) for c, w in zip(cells, widths, strict=True)).rstrip()
        for r in history.rounds:
            yield from (f"  {'  ' * line.startswith(' ')}{clean(line)}" for line in _told(r))
        yield from (f"  {clean(sentence(line))}" for line in history.said)
        yield from (f"  {clean(line)}" for line in (history.stop,) if line)
        yield ""
    if rates:
        yield f"How often predictions came true, over {count(lineages, 'lineage')}:"
        yield from (f"  {clean(rate(r))}" for r in rates)


def markdown(histories: Sequence[History], rates: Sequence[HitRate], lineages: int) -> Iterator[str]:
    """The lines of `advisor history` as Markdown."""
    if not histories:
        yield md(_NONE)
    for history in histories:
        yield f"## {md(_title(history))}"
        yield ""
        yield f"| {' | '.join(_HEADS)} |"
        yield "|---|---|---|---|---|"
        yield from (f"| {' | '.join(md(cell) for cell in row(r))} |" for r in history.rounds)
        yield ""
        lines = [line for r in history.rounds for line in _told(r)]
        yield from (
            f"- {md(line.strip())}" for line in (*lines, *history.said, *((history.stop,) if history.stop else ()))
        )
        yield ""
    if rates:
        yield f"## How often predictions came true, over {count(lineages, 'lineage')}"
        yield ""
        yield from (f"- {md(rate(r))}" for r in rates)


def _title(history: History) -> str:
    first, last = history.rounds[0], history.rounds[-1]
    went = f"{number(first.best)} at first, {number(last.incumbent)} now"
    objective = history.objective
    return f"{first.study}: {count(len(history.rounds), 'round')}, to {objective.direction} {objective.metric}: {went}"


def _told(round: Round) -> Iterator[str]:
    """What a round changed and why, and what became of what was predicted of it."""
    if not round.changed and not round.outcomes:
        return
    yield f"Round {round.number}" + (f", {round.goal}" if round.goal else "")
    yield from (f"  {line}" for line in round.changed)
    yield from (f"  because: {line}" for line in round.why)
    for o in round.outcomes:
        yield f"  {o.judged}: {o.predicted} [{o.prediction.rule}]; {o.observed}"

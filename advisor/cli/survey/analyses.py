"""The analyses of many experiments: each by itself in a process of this machine or of a cluster, and what became of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from advisor.analysis import analyze
from advisor.cli.survey.choice import Chosen, choose
from advisor.cli.survey.remote_job import Luggage, pack
from advisor.contract.redact import redact
from advisor.model.errors import AdvisorError, NothingToJudge
from advisor.model.words import encodable
from advisor.report.formats.html import render_index
from advisor.report.formats.index import Outcome, in_order, outcome
from advisor.report.save import files, save_files
from advisor.system import shell
from advisor.system.atomic import write
from advisor.system.workers import Where, processes, ray

INDEX = "index.html"


@dataclass(frozen=True, slots=True)
class Analysed:
    """What became of an experiment, with the files of its report, which are yet to be written."""

    outcome: Outcome
    texts: Mapping[str, str] = field(default_factory=dict)


def analyze_all(
    pattern: str,
    out: Path,
    *,
    where: Where,
    on_progress: Callable[[str, int, int], None],
    given: Sequence[str] = (),
    **options: Any,
) -> list[Outcome]:
    """Analyse the experiments whose names match, and write each report to a folder below `out`, and `out/index.html`.

    pattern: as of files, `cifar-*`. where: what analyses them; the files are the same, and on this machine. given: the options as
    words of the command line, for the reports. options: those of `advisor.analyze`.

    An experiment that cannot be analysed is told of and stops no other, also where its process dies. Raises AdvisorError where none
    matches, nothing can be written, or the cluster cannot do the work.
    """
    found = choose(pattern, options.get("tracking_uri"))
    with _writing(out):
        out.mkdir(parents=True, exist_ok=True)
    begin = _on_ray if where.on == "ray" else _here
    outcomes: list[Outcome] = []
    for told in begin(found, out, where, given=given, options=options):
        outcomes.append(told)
        on_progress("Analysing experiments", len(outcomes), len(found))
    with _writing(out):
        write({out / INDEX: encodable(render_index(outcomes))})
    return in_order(outcomes)


@contextmanager
def _writing(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise AdvisorError(f"cannot write to {str(out)!r}: {reason}; give another folder by --out") from None


def _here(
    found: Sequence[Chosen], out: Path, where: Where, *, given: Sequence[str], options: Mapping[str, Any]
) -> Iterator[Outcome]:
    """The outcomes as they come, from processes that write the reports themselves."""
    work = partial(_analyze_and_save, out=out, given=given, options=options)
    return processes.each(work, found, jobs=where.jobs or processes.usable_cpus(), died=_died)


def _on_ray(
    found: Sequence[Chosen], out: Path, where: Where, *, given: Sequence[str], options: Mapping[str, Any]
) -> Iterator[Outcome]:
    """The outcomes as they come, from a cluster whose nodes share no disk with this machine: it writes the reports."""
    work = partial(_analyze_away, given=given, luggage=pack(options, [chosen.name for chosen in found]))
    for chosen, analysed in ray.each(work, found, jobs=where.jobs, address=where.ray_address, died=_lost):
        yield _saved(chosen, analysed, out)


def _analyze_and_save(chosen: Chosen, *, out: Path, given: Sequence[str], options: Mapping[str, Any]) -> Outcome:
    return _saved(chosen, _analyze(chosen, given=given, options=options), out)


def _analyze_away(chosen: Chosen, *, given: Sequence[str], luggage: Luggage) -> tuple[Chosen, Analysed]:
    with luggage.unpacked() as options:
        return chosen, _analyze(chosen, given=given, options=options)


def _analyze(chosen: Chosen, *, given: Sequence[str], options: Mapping[str, Any]) -> Analysed:
    """Analyse one experiment; nothing is written."""
    try:
        report = analyze(chosen.asked, command=shell.line(["advisor", "analyze", chosen.asked, *given]), **options)
        return Analysed(outcome(chosen.name, chosen.folder, report), files(report))
    except Exception as error:
        return Analysed(_failed(chosen, error))


def _saved(chosen: Chosen, analysed: Analysed, out: Path) -> Outcome:
    """The outcome, once the report's files are written, if there is one."""
    try:
        if analysed.texts:
            save_files(analysed.texts, out / chosen.folder)
        return analysed.outcome
    except Exception as error:
        return _failed(chosen, error)


def _failed(chosen: Chosen, error: Exception) -> Outcome:
    """What to say of an experiment without a report."""
    if isinstance(error, NothingToJudge):
        return Outcome(chosen.name, "unknown", redact(str(error)))
    if isinstance(error, AdvisorError):
        return Outcome(chosen.name, "broken", redact(str(error)))
    return Outcome(chosen.name, "broken", redact(f"unexpected {type(error).__name__}: {error} (a bug)"))


def _died(chosen: Chosen, status: int | None) -> Outcome:
    if status is None:
        return Outcome(chosen.name, "broken", "the system would start no process for it; try fewer --jobs")
    why = "it was killed, perhaps for want of memory; try fewer --jobs" if status == -9 else f"exit status {status}"
    return Outcome(chosen.name, "broken", f"its process died: {why}")


def _lost(chosen: Chosen, why: str) -> tuple[Chosen, Analysed]:
    return chosen, Analysed(Outcome(chosen.name, "broken", why))

"""All experiments of a store: each analysed by itself in one of several processes, with a page that lists them."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from advisor import shell
from advisor.errors import AdvisorError, NothingToJudge
from advisor.workers import each

if TYPE_CHECKING:
    from advisor.report.index import Outcome
    from advisor.tracking.lookup import Listed

INDEX = "index.html"


@dataclass(frozen=True, slots=True)
class Chosen:
    """An experiment to analyse."""

    name: str
    asked: str
    """What it is asked for by: its name, or its id where several have the name."""
    folder: str
    """Where its report goes, below the index; the same however many others are chosen."""


def analyze_all(
    pattern: str,
    out: Path,
    *,
    jobs: int,
    on_progress: Callable[[str, int, int], None],
    given: Sequence[str] = (),
    **options: Any,
) -> list[Outcome]:
    """Analyse the experiments whose names match, and write each report to a folder below `out`, and `out/index.html`.

    pattern: as of files, `cifar-*`. jobs: processes. given: the options as words of the command line, for the reports.
    options: those of `advisor.analyze`. An experiment that cannot be analysed is told of and stops no other, also where its process
    dies. Raises AdvisorError where none matches or nothing can be written.
    """
    from advisor.report.html import render_index
    from advisor.report.index import in_order
    from advisor.report.text import encodable
    from advisor.whole_files import write

    found = choose(pattern, options.get("tracking_uri"))
    with _writing(out):
        out.mkdir(parents=True, exist_ok=True)
    outcomes: list[Outcome] = []
    for outcome in each(partial(_analyze, out=out, given=given, options=options), found, jobs=jobs, died=_died):
        outcomes.append(outcome)
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


def choose(pattern: str, tracking_uri: str | None) -> list[Chosen]:
    """The experiments whose names match the pattern, oldest first; raises AdvisorError if there is none."""
    from advisor.tracking.location import locate
    from advisor.tracking.store import listed_experiments

    listed = listed_experiments(tracking_uri)
    names = Counter(e.name for e in listed)
    found = [
        Chosen(e.name, e.name if names[e.name] == 1 else e.id, _folder(e))
        for e in listed
        if fnmatchcase(e.name, pattern)
    ]
    if not found:
        where = locate(tracking_uri).shown
        raise AdvisorError(f"none of the {len(listed)} experiments in {where} has a name like {pattern!r}")
    return found


def _folder(experiment: Listed) -> str:
    """Its name for people and its id to tell it from all others; a server may say anything is an id."""
    from advisor.plans.folding import slug

    plain = re.fullmatch(r"[0-9a-z]{1,40}", experiment.id) is not None
    return (
        f"{slug(experiment.name)}-{experiment.id if plain else hashlib.sha256(experiment.id.encode()).hexdigest()[:16]}"
    )


def _analyze(chosen: Chosen, *, out: Path, given: Sequence[str], options: dict[str, Any]) -> Outcome:
    """Analyse one experiment and write its report."""
    from advisor.analysis import analyze
    from advisor.contract.redact import redact
    from advisor.report.index import Outcome, outcome
    from advisor.report.save import save_report

    try:
        report = analyze(chosen.asked, command=shell.line(["advisor", "analyze", chosen.asked, *given]), **options)
        save_report(report, out / chosen.folder)
        return outcome(chosen.name, chosen.folder, report)
    except NothingToJudge as nothing:
        return Outcome(chosen.name, "unknown", redact(str(nothing)))
    except AdvisorError as error:
        return Outcome(chosen.name, "broken", redact(str(error)))
    except Exception as error:
        return Outcome(chosen.name, "broken", redact(f"unexpected {type(error).__name__}: {error} (a bug)"))


def _died(chosen: Chosen, status: int | None) -> Outcome:
    from advisor.report.index import Outcome

    if status is None:
        return Outcome(chosen.name, "broken", "the system would start no process for it; try fewer --jobs")
    why = "it was killed, perhaps for want of memory; try fewer --jobs" if status == -9 else f"exit status {status}"
    return Outcome(chosen.name, "broken", f"its process died: {why}")

"""Prints trials for people and programs."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TextIO

from advisor.model.space import Value
from advisor.model.spec_yaml import short


def write_trials(trials: Iterable[Mapping[str, Value]], names: Sequence[str], format_: str, out: TextIO) -> None:
    """One trial a line: a JSON object (`jsonl`), a row under a header (`csv`), or aligned columns (`table`)."""
    if format_ == "jsonl":
        for trial in trials:
            out.write(json.dumps(trial, ensure_ascii=False) + "\n")
    elif format_ == "csv":
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(names)
        writer.writerows([[trial.get(name, "") for name in names] for trial in trials])
    else:
        _write_table([{n: short(v) for n, v in trial.items()} for trial in trials], names, out)


def _write_table(rows: Sequence[Mapping[str, str]], names: Sequence[str], out: TextIO) -> None:
    widths = {name: max([len(short(name)), *(len(row.get(name, "–")) for row in rows)]) for name in names}
    out.write("  ".join(short(name).rjust(widths[name]) for name in names) + "\n")
    for row in rows:
        out.write("  ".join(row.get(name, "–").rjust(widths[name]) for name in names) + "\n")

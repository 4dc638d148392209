"""The command `advisor sample`."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import click

from advisor.model.spec_yaml import load_study_file
from advisor.model.words import short_text
from advisor.planning.sampling.halton import draw_trials as draw


@click.command()
@click.argument("study", type=click.Path(path_type=Path))
@click.option(
    "-n", "--count", type=click.IntRange(min=0), help="Number of trials.  [default: the study's number of trials, or 10]"
)
@click.option("--skip", type=click.IntRange(min=0), default=0, help="Skip the first K trials, to extend a study.")
@click.option("--format", "format_", type=click.Choice(["jsonl", "csv", "table"]), default="jsonl", show_default=True)
def sample(study: Path, count: int | None, skip: int, format_: str) -> None:
    """Draw trials from the space of STUDY (a YAML file), and print the parameters of one trial per line.

    The trials are a scrambled, shifted Halton sequence: a study file gives the same trials on every machine.
    """
    spec = load_study_file(study)
    trials = draw(spec, count if count is not None else (spec.trials or 10), skip=skip)
    names, out = list(spec.parameters), sys.stdout
    if format_ == "jsonl":
        out.writelines(json.dumps(trial) + "\n" for trial in trials)
    elif format_ == "csv":
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(names)
        writer.writerows([[trial.get(name, "") for name in names] for trial in trials])
    else:
        text_rows = [{n: short_text(n) for n in names}, *({n: short_text(v) for n, v in trial.items()} for trial in trials)]
        widths = {name: max(len(row.get(name, "–")) for row in text_rows) for name in names}
        out.writelines("  ".join(row.get(name, "–").rjust(widths[name]) for name in names) + "\n" for row in text_rows)

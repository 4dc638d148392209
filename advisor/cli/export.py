"""The command `advisor export`: writes a study in the format of another tool."""

from __future__ import annotations

from pathlib import Path

import click

from advisor.cli.options import tracking_option
from advisor.execution.ledger.ledger import Ledger
from advisor.interop.exports import EXPORT_FORMATS, export as render
from advisor.interop.exports.search_spaces import PastTrial
from advisor.model.errors import AdvisorError, convert_os_errors
from advisor.model.spec import StudySpec
from advisor.model.spec_yaml import load_study_file
from advisor.planning.sampling.halton import draw_trials
from advisor.system.atomic import write_files
from advisor.tracking import read_study
from advisor.tracking.stores.location import parse_tracking_uri


@click.command()
@click.argument("kind", type=click.Choice(EXPORT_FORMATS))
@click.argument("study", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="File to write.  [default: standard output]")
@click.option("--points", is_flag=True, help="Export the trials that `advisor sample` draws, instead of the search space.")
@click.option(
    "-n",
    "--count",
    type=click.IntRange(min=1),
    help="Number of trials to export.  [default: the study's number of trials, or 10]",
)
@click.option("--skip", type=click.IntRange(min=0), default=0, help="Skip the first K trials that `advisor sample` draws.")
@click.option(
    "--experiment",
    metavar="NAME",
    help="For Optuna: enter the trials of this MLflow experiment as past trials. With --out, also declare the study in MLflow: "
    "trials in an experiment of its name are then the next round.",
)
@click.option("--force", is_flag=True, help="Overwrite an existing file with other contents.")
@tracking_option
def export(
    kind: str,
    study: Path,
    out: Path | None,
    points: bool,
    count: int | None,
    skip: int,
    experiment: str | None,
    force: bool,
    tracking_uri: str | None,
) -> None:
    """Write STUDY (a YAML file) in the format of another tool.

    \b
    optuna    a script with the space, its forbidden regions and the past trials
    ray       a Ray Tune space, as a Python module
    wandb     a Weights & Biases sweep, YAML
    hydra     a sweeper's configuration: hydra-optuna-sweeper, or with --points Hydra's own
    algoperf  tuning_search_space.json

    The export fails if the tool cannot express a part of the space (a condition, a reverse-log scale, a formula, a forbidden
    region). In this case, --points exports the trials themselves, which every tool can run.

    \b
    advisor export optuna next/1-….yaml --experiment cifar --out study.py
    advisor export wandb next/1-….yaml --points -n 40 --out sweep.yaml
    """
    if not points and (count is not None or skip):
        raise AdvisorError("-n and --skip select trials to export; add --points, which exports trials instead of the space")
    spec = load_study_file(study)
    drawn_trials = list(draw_trials(spec, count or spec.trials or 10, skip=skip)) if points else None
    exported_text = render(kind, spec, points=drawn_trials, past=_read_past_trials(spec, experiment, tracking_uri))
    if out is None:
        click.echo(exported_text.encode(), nl=False)  # write UTF-8 even if the terminal has another encoding, as in a file
        return
    _write_export_file(exported_text, out, force=force)
    if kind == "optuna" and experiment not in (None, spec.study):
        _store_study_file(spec, tracking_uri)


def _write_export_file(text: str, out: Path, *, force: bool) -> None:
    with convert_os_errors(f"cannot write {str(out)!r}"):
        if out.is_file() and not force and out.read_bytes() != text.encode():
            raise AdvisorError(f"{out} exists already; pass another --out, or --force to overwrite it")
        if out.is_file() or not out.exists():
            write_files({out.resolve(): text})
        else:
            out.write_text(text, encoding="utf-8")  # `out` is not a regular file but, for example, a pipe or a terminal


def _store_study_file(spec: StudySpec, tracking_uri: str | None) -> None:
    """Store the study file in the MLflow experiment with the study's name. Optuna's MLflowCallback logs into this experiment."""
    try:
        Ledger(parse_tracking_uri(tracking_uri), spec.study, spec)
    except AdvisorError as error:
        click.echo(f"advisor: trials of {spec.study!r} will not count as round {spec.round}: {error}", err=True)
    else:
        click.echo(f"advisor: trials in the MLflow experiment {spec.study!r} will be round {spec.round}", err=True)


def _read_past_trials(spec: StudySpec, experiment: str | None, tracking_uri: str | None) -> list[PastTrial]:
    """Return the experiment's ended trials within the search space, oldest first, and print how many ended trials lie outside."""
    if experiment is None:
        return []
    study = read_study(experiment, tracking_uri=tracking_uri, spec=spec)
    cost_sign = 1 if spec.objective.direction == "minimize" else -1
    ended_trials = [t for t in study.trials if t.status not in ("running", "no_data")]
    in_space = [t for t in ended_trials if all(p.contains(t.params[n]) for n, p in spec.searched.items() if n in t.params)]
    if outside := len(ended_trials) - len(in_space):
        note = f"{outside} of {len(ended_trials)} trials are outside the space and were left out"
        click.echo(f"advisor: {note}", err=True)
    return [
        PastTrial(t.params, cost_sign * float(study.costs[t.index]) if study.feasible[t.index] else None)
        for t in sorted(in_space, key=lambda t: (t.started or 0, t.index))
    ]

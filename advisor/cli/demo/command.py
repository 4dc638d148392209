"""The command `advisor demo`: tunes in an unsuitable space, and then in the space of the study file that the advisor wrote."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from functools import lru_cache
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path

import click
from rich.progress import track

from advisor.analysis import analyze
from advisor.execution import jobs
from advisor.execution.api import open_study, report_trial
from advisor.model.errors import AdvisorError, convert_os_errors
from advisor.model.spec import Objective, Parameter, Sampler, StudySpec
from advisor.model.spec_yaml import format_study_file, load_study_file
from advisor.model.words import clean, count
from advisor.report import Report
from advisor.report.text.headline import headline_goal_and_reason

DEMO_MARK_FILE = ".advisor-demo"
"""Name of the file that marks a folder as created by an earlier demo; only such a folder may be overwritten."""
WORKER_PROCESSES = 2


def first_demo_study(trials: int, seed: int) -> StudySpec:
    return StudySpec(
        study="digits",
        goal="Find a good learning rate and dropout",
        objective=Objective(metric="val/error", direction="minimize"),
        parameters={
            "learning_rate": Parameter(type="float", low=1e-5, high=1e-3, scale="log", why="the range of an earlier project"),
            "dropout": Parameter(type="float", low=0.5, high=0.95, why="overfitting is feared"),
            "momentum": Parameter(role="fixed", value=0.9, why="the usual value"),
            "width": Parameter(role="fixed", value=128, why="small enough for a demo"),
        },
        trials=trials,
        sampler=Sampler(seed=seed),
        max_train_steps=600,
        evaluate_every=20,
    )


def run_demo(out: Path, *, trials: int, seed: int, echo: Callable[[str], None]) -> None:
    _create_or_empty_folder(out)
    uri = f"sqlite:///{(out / 'mlflow.db').resolve()}"
    first_file = out / "round-1.yaml"
    spec = first_demo_study(trials, seed)
    first_file.write_text(format_study_file(spec), encoding="utf-8")
    # Ctrl+C ends the worker processes at once. If they raised KeyboardInterrupt instead, each would train one more trial.
    with ProcessPoolExecutor(WORKER_PROCESSES, get_context("spawn"), signal.signal, (signal.SIGINT, signal.SIG_DFL)) as pool:
        echo(f"Round 1: {spec.trials} trials of a small network on handwritten digits, in the space of {first_file}.")
        report = _run_round(pool, spec, first_file, uri, out / "round-1", seed)
        _print_first_step(report, out / "round-1", echo)
        next_study_files = sorted((out / "round-1" / "next").glob("1-*.yaml"))
        if not next_study_files:
            echo(f"The advisor asks for no further study. Best validation error: {_best_error_text(report)}.")
            return
        spec = load_study_file(next_study_files[0])
        echo(f"\nRound 2: {spec.trials} trials from the study that the advisor wrote, {next_study_files[0]}.")
        second_report = _run_round(pool, spec, next_study_files[0], uri, out / "round-2", seed + 1000)
        _print_first_step(second_report, out / "round-2", echo)
        echo(f"\nBest validation error: {_best_error_text(report)} in round 1, {_best_error_text(second_report)} in round 2.")


def _create_or_empty_folder(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise AdvisorError(f"{str(out)!r} is a file; pass another --out")
    if out.is_dir() and any(out.iterdir()) and not (out / DEMO_MARK_FILE).is_file():
        raise AdvisorError(f"the folder {str(out)!r} contains files that are not from an earlier demo; pass another --out")
    with convert_os_errors(f"cannot write into {str(out)!r}", "pass another --out"):
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        (out / DEMO_MARK_FILE).touch()


def _run_round(pool: Executor, spec: StudySpec, file: Path, uri: str, out: Path, seed: int) -> Report:
    trial_count = len(jobs(spec))
    futures = [pool.submit(_train_next_trial, file, uri, out.parent / "checkpoints", seed) for _ in range(trial_count)]
    try:
        for future in track(as_completed(futures), description="Training", total=trial_count, transient=True):
            future.result()
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)  # after Ctrl+C or an error, train no further trial
        raise
    command = f"advisor analyze {spec.study} --study {file.name}"
    report = analyze(spec.study, tracking_uri=uri, study=file, settings={}, command=command)
    report.save(out)
    return report


_open_study_once = lru_cache(maxsize=1)(open_study)


def _train_next_trial(file: Path, uri: str, checkpoints: Path, seed: int) -> None:
    from advisor.cli.demo.train import train_digits_network  # imported here, because `train` imports torch

    study = _open_study_once(file, tracking_uri=uri)
    for trial in study.trials(seed=seed):
        train_digits_network(
            trial.params,
            max_train_steps=study.spec.max_train_steps or 600,
            evaluate_every=study.spec.evaluate_every or 20,
            seed=trial.seed,
            checkpoint_dir=str(checkpoints),
        )
        report_trial(trial)
        return


def _best_error_text(report: Report) -> str:
    return "none" if report.best is None else f"{report.best.value:.4f}"


def _print_first_step(report: Report, out: Path, echo: Callable[[str], None]) -> None:
    """Print the headline, because a list of all findings would not show which findings follow from others."""
    action, reason = headline_goal_and_reason(report)
    echo(f"  {clean(str(action))}")
    echo(f"    {clean(str(reason))}")
    echo(f"  Report with all {count(len(report.findings), 'finding')}: {out / 'report.html'}")


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("demo-out"), show_default=True, help="Output folder.")
@click.option(
    "--trials", type=click.IntRange(min=6, max=200), default=20, show_default=True, help="Number of trials per round."
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the first trial.")
def demo(out: Path, trials: int, seed: int) -> None:
    """Tune a small network on real data in two rounds: first in an unsuitable space, then in the space the advisor suggests.

    The demo takes a minute or two on two cores. The demo needs the extra `demo`: pip install "tuning-advisor[demo]".
    """
    missing_modules = [module for module in ("torch", "sklearn", "advisor_pytorch") if find_spec(module) is None]
    if missing_modules:
        raise AdvisorError(f'the demo needs {", ".join(missing_modules)}: pip install "tuning-advisor[demo]"')
    run_demo(out, trials=trials, seed=seed, echo=click.echo)

"""Two rounds: a study in a space that is wrong in two ways, then the study that the advisor wrote from its trials.

Nothing is staged: the second round runs from the file that the analysis of the first one wrote, whatever it says.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from functools import lru_cache
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path

from advisor.analysis import analyze
from advisor.execution import jobs
from advisor.execution.api import open_study, report_trial
from advisor.model.errors import AdvisorError
from advisor.model.spec import Objective, Parameter, Sampler, StudySpec
from advisor.model.spec_yaml import dump, load
from advisor.report import Report

MARK = ".advisor-demo"
"""File that tells a folder of the demo from a user's."""
WORKERS = 2
_SAID = {"critical": "Fix first", "warning": "Worth doing", "note": "Consider"}


def first_study(trials: int, seed: int) -> StudySpec:
    """A study as a hurried engineer might set it up: learning rates far too low, dropout far too strong."""
    return StudySpec(
        study="digits",
        goal="Find a good learning rate and dropout",
        objective=Objective(metric="val/error", direction="minimize"),
        parameters={
            "learning_rate": Parameter(
                type="float", low=1e-5, high=1e-3, scale="log", why="what the last project used"
            ),
            "dropout": Parameter(type="float", low=0.5, high=0.95, why="overfitting is feared"),
            "momentum": Parameter(role="fixed", value=0.9, why="the usual value"),
            "width": Parameter(role="fixed", value=128, why="small enough for a demo"),
        },
        trials=trials,
        sampler=Sampler(seed=seed),
        max_train_steps=600,
        evaluate_every=20,
    )


def run_demo(out: Path, *, trials: int, seed: int, say: Callable[[str], None]) -> None:
    """Run both rounds into the folder `out`: the MLflow store, and a report for each round."""
    _require("torch", "sklearn", "advisor_pytorch")
    _fresh(out)
    uri = f"sqlite:///{(out / 'mlflow.db').resolve()}"
    first = out / "round-1.yaml"
    spec = first_study(trials, seed)
    first.write_text(dump(spec), encoding="utf-8")
    with ProcessPoolExecutor(WORKERS, mp_context=get_context("spawn")) as pool:
        _rounds(pool, spec, first, uri, seed, say)


def _rounds(pool: Executor, spec: StudySpec, first: Path, uri: str, seed: int, say: Callable[[str], None]) -> None:
    out = first.parent
    say(f"Round 1: {spec.trials} trials of a small network on handwritten digits, in the space of {first}.")
    report = _round(pool, spec, first, uri, out / "round-1", seed)
    _tell(report, out / "round-1", say)
    following = sorted((out / "round-1" / "next").glob("1-*.yaml"))
    if not following:
        say(f"The advisor asks for no further study. Best validation error: {_best(report)}.")
        return
    spec = load(following[0])
    say(f"\nRound 2: {spec.trials} trials from the study that the advisor wrote, {following[0]}.")
    again = _round(pool, spec, following[0], uri, out / "round-2", seed + 1000)
    _tell(again, out / "round-2", say)
    say(f"\nBest validation error: {_best(report)} in round 1, {_best(again)} in round 2.")


def _require(*modules: str) -> None:
    missing = [m for m in modules if find_spec(m) is None]
    if missing:
        raise AdvisorError(f'the demo needs {", ".join(missing)}: pip install "tuning-advisor[demo]"')


def _fresh(out: Path) -> None:
    """An empty folder; an earlier demo's is emptied, anything else is left alone."""
    if out.exists() and not out.is_dir():
        raise AdvisorError(f"{str(out)!r} is a file; pass another folder as --out")
    if out.is_dir() and any(out.iterdir()) and not (out / MARK).is_file():
        raise AdvisorError(
            f"the folder {str(out)!r} holds other things than an earlier demo; pass another one as --out"
        )
    try:
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        (out / MARK).touch()
    except OSError as error:
        raise AdvisorError(f"cannot write into {str(out)!r}: {error.strerror}; pass another folder as --out") from None


def _round(pool: Executor, spec: StudySpec, file: Path, uri: str, out: Path, seed: int) -> Report:
    _run_trials(pool, spec, file, uri, out.parent / "checkpoints", seed)
    report = analyze(
        spec.study,
        tracking_uri=uri,
        study=file,
        settings={},
        command=f"advisor analyze {spec.study} --study {file.name}",
    )
    report.save(out)
    return report


def _run_trials(pool: Executor, spec: StudySpec, file: Path, uri: str, checkpoints: Path, seed: int) -> None:
    """All trials of the study, in processes that share it as loops on several machines would."""
    from rich.progress import track

    count = len(jobs(spec))
    futures = [pool.submit(_train_next, file, uri, checkpoints, seed) for _ in range(count)]
    for future in track(as_completed(futures), description="Training", total=count, transient=True):
        future.result()


_opened = lru_cache(maxsize=1)(open_study)


def _train_next(file: Path, uri: str, checkpoints: Path, seed: int) -> None:
    """Train the first trial that nobody has trained, and nobody trains now."""
    from advisor.cli.demo.train import train

    study = _opened(file, tracking_uri=uri)
    for trial in study.trials(seed=seed):
        train(
            trial.params,
            max_train_steps=study.spec.max_train_steps or 600,
            evaluate_every=study.spec.evaluate_every or 20,
            seed=trial.seed,
            checkpoint_dir=str(checkpoints),
        )
        report_trial(trial)
        return


def _best(report: Report) -> str:
    return "none" if report.best is None else f"{report.best.value:.4f}"


def _tell(report: Report, out: Path, say: Callable[[str], None]) -> None:
    for finding in report.findings:
        say(f"  {_SAID[finding.severity]}: {finding.message}")
    say(f"  Report: {out / 'report.html'}")

"""Damaged files of other tools give runs or one clear line; no code is run and only the store is written."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from advisor.interop.importers import algoperf, guess, lightning, ray, tensorboard, trainer_state, wandb
from advisor.interop.importers.mlflow_runs import MlflowNames, convert_run
from advisor.interop.importers.optuna import OptunaStorage
from advisor.interop.importers.results_tsv import ResultsTsv
from advisor.interop.importers.runs import Importer
from advisor.interop.importers.tables import TidyTables
from advisor.interop.importers.tabular import TableImporter
from tests.fuzz import sources
from tests.fuzz.inputs import as_json, damaged, text, twisted
from tests.fuzz.outcome import advisor, called, cases, place

IMPORTERS: dict[str, Importer] = {
    "csv": TableImporter("csv"),
    "jsonl": TableImporter("jsonl"),
    "wandb": wandb,
    "lightning": lightning,
    "ray": ray,
    "trainer-state": trainer_state,
    "algoperf": algoperf,
    "tensorboard": tensorboard,
    "optuna": OptunaStorage(),
    "results-tsv": ResultsTsv(),
}


def read(kind: str, path: Path) -> None:
    """Do everything that an import does except writing to the store."""
    names = MlflowNames()
    for number, run in enumerate(IMPORTERS[kind].find_runs(path).runs):
        new = convert_run(run, run.read(), names, number)
        for points in new.points.values():
            points.distinct()
        " ".join([new.name, *new.params, *new.params.values(), *new.tags.values(), *new.points, *new.source]).encode()
    guess.detect_import_kinds(str(path))


def put(contents: Mapping[str, bytes], folder: Path) -> None:
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def ask(kind: str, contents: dict[str, bytes], named: str = "") -> None:
    with place() as folder:
        put(contents, folder)
        called(lambda: read(kind, folder / named), folder=folder)


WHOLE = {
    "csv": ("csv", "a.csv", sources.CSV),
    "tsv": ("csv", "a.tsv", sources.TSV),
    "jsonl": ("jsonl", "a.jsonl", sources.lines(sources.JSON_LINES)),
    "results": ("results-tsv", "results.tsv", sources.RESULTS),
    "lightning": ("lightning", "v/metrics.csv", sources.LIGHTNING),
    "algoperf": ("algoperf", "s/mnist_x/trial_1/eval_measurements.csv", sources.ALGOPERF),
    "trainer": ("trainer-state", "trainer_state.json", as_json(sources.TRAINER)),
    "card": ("trainer-state", "README.md", sources.CARD),
    "ray": ("ray", "e/t1/result.json", sources.lines(sources.RESULT)),
    "state": ("ray", "e/experiment_state-1.json", as_json(sources.STATE)),
    "hparams": ("lightning", "v/hparams.yaml", b"lr: 0.1\nopt: {name: sgd, betas: [0.9, 0.99]}\nwhen: 2020-01-01\n"),
    "config": ("wandb", "w/files/config.yaml", as_json(sources.CONFIG)),
}
BESIDE = {
    "lightning": {"v/metrics.csv": sources.LIGHTNING},
    "ray": {"e/t1/params.json": b'{"lr": 0.1}', "e/t1/result.json": sources.lines(sources.RESULT), "e/t1/error.txt": b"x"},
    "trainer-state": {"trainer_state.json": as_json(sources.TRAINER)},
    "wandb": {"w/files/wandb-summary.json": as_json(sources.SUMMARY)},
}


@pytest.mark.parametrize("which", WHOLE)
@cases(215)
@given(st.data())
def test_a_damaged_file(which: str, data: st.DataObject) -> None:
    kind, name, whole = WHOLE[which]
    ask(kind, {**BESIDE.get(kind, {}), name: data.draw(damaged(whole))})


TREES: dict[str, tuple[str, str, Any, Callable[[Any], bytes]]] = {
    "jsonl": ("jsonl", "a.jsonl", sources.JSON_LINES, sources.lines),
    "ray": ("ray", "e/t1/result.json", sources.RESULT, sources.lines),
    "params": ("ray", "e/t1/params.json", {"lr": 0.1, "model": {"depth": 2}}, as_json),
    "state": ("ray", "e/experiment_state-1.json", sources.STATE, as_json),
    "trainer": ("trainer-state", "trainer_state.json", sources.TRAINER, as_json),
    "arguments": ("trainer-state", "args.json", sources.ARGUMENTS, as_json),
    "summary": ("wandb", "w/files/wandb-summary.json", sources.SUMMARY, as_json),
    "config": ("wandb", "w/files/config.yaml", sources.CONFIG, as_json),
}


@pytest.mark.parametrize("which", TREES)
@cases(215)
@given(st.data())
def test_a_file_with_something_else_in_it(which: str, data: st.DataObject) -> None:
    kind, name, tree, written = TREES[which]
    ask(kind, {**BESIDE.get(kind, {}), name: written(data.draw(twisted(tree)))})


@cases(150)
@given(st.data())
def test_an_event_file_with_damaged_records(data: st.DataObject) -> None:
    records = list(sources.event_records())
    at = data.draw(st.integers(0, len(records) - 1))
    records[at] = data.draw(damaged(records[at]))
    ask("tensorboard", {"r/events.out.tfevents.1": sources.events_of(records)})


@cases(100)
@given(damaged(sources.events()))
def test_a_damaged_event_file(content: bytes) -> None:
    ask("tensorboard", {"r/events.out.tfevents.1": content})


@cases(200)
@given(st.data(), st.booleans())
def test_a_damaged_wandb_file(data: st.DataObject, framed: bool) -> None:
    records = list(sources.wandb_records())
    if framed:
        at = data.draw(st.integers(0, len(records) - 1))
        records[at] = data.draw(damaged(records[at]))[:30_000]
        whole = sources.records_of(records)
    else:
        whole = data.draw(damaged(sources.records_of(records)))
    ask("wandb", {"run-1/run-1.wandb": whole})


@cases(150)
@given(damaged(sources.parquet()))
def test_a_damaged_parquet_file(content: bytes) -> None:
    ask("csv", {"a.parquet": content})


@cases(60)
@given(st.one_of(damaged(sources.lines(sources.JOURNAL)), twisted(sources.JOURNAL).map(sources.lines)))
def test_a_damaged_journal_of_optuna(content: bytes) -> None:
    ask("optuna", {"journal.log": content}, "journal.log")


@cases(20)
@given(damaged(sources.database()))
def test_a_damaged_storage_of_optuna(content: bytes) -> None:
    ask("optuna", {"study.db": content}, "study.db")


@cases(200)
@given(damaged(sources.TABLE), damaged(sources.POINTS), st.sampled_from([0, 1]))
def test_damaged_tidy_tables(trials: bytes, points: bytes, which: int) -> None:
    def import_() -> None:
        for run in TidyTables(folder / "c.csv").find_runs(folder / "t.csv").runs:
            run.read()

    with place() as folder:
        (folder / "t.csv").write_bytes(trials if which else sources.TABLE)
        (folder / "c.csv").write_bytes(sources.POINTS if which else points)
        called(import_, folder=folder)


# --- through the command, into a real store ---------------------------------------------------------------------------------------


@cases(15)
@given(st.data(), st.sampled_from(sorted(TREES)), text)
def test_an_import_into_a_store(empty_store: Path, data: st.DataObject, which: str, experiment: str) -> None:
    kind, name, tree, written = TREES[which]
    with place() as folder:
        put({**BESIDE.get(kind, {}), name: written(data.draw(twisted(tree)))}, folder / "in")
        shutil.copy(empty_store, folder / "s.db")
        words = ["import", kind, str(folder / "in"), "--tracking-uri", f"sqlite:///{folder}/s.db"]
        words += [f"--experiment={experiment}"] if experiment.isprintable() else []
        advisor(*words, folder=folder, writes=("s.db",))


class _Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("kind", sorted(IMPORTERS))
def test_pickles_are_never_loaded(kind: str, tmp_path: Path) -> None:
    """A pickle is put under every name that an importer reads, or that the tool gives to its pickles."""
    sources.wandb_records()  # loads the library, which makes folders for itself
    evil = pickle.dumps(_Evil(tmp_path / "canary"))
    (tmp_path / "canary").unlink(missing_ok=True)
    named = {name for kind, name, *_ in (*WHOLE.values(), *TREES.values())} | {*BESIDE.get(kind, ())}
    named |= {"training_args.bin", "e/t1/params.pkl", "e/tuner.pkl", "e/searcher-state-1.pkl", "optimizer.pt"}
    named |= {"a.parquet", "events.out.tfevents.1", "run-1.wandb", "s.db"}
    with place() as folder:
        put(dict.fromkeys(named, evil), folder)
        called(lambda: read(kind, folder / "s.db" if kind == "optuna" else folder), folder=folder)
    assert not (tmp_path / "canary").exists()

"""Smallest examples of the faults that fuzzing found: each now gives one clear line, or an analysis, instead of a traceback."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from advisor.engine.settings import find_settings
from advisor.interop.importers import files, metric_tables, ray, tensorboard, trainer_state
from advisor.interop.importers.metric_tables import TableLayout
from advisor.interop.importers.optuna import OptunaStorage
from advisor.interop.importers.tabular import TableImporter
from advisor.model import spec_yaml
from advisor.model.errors import AdvisorError
from advisor.report.figures.curves import _step_axis_scale
from advisor.report.plot_data.model import TrialCurve
from advisor.system import shell
from advisor.tracking.study.inference import parse_params
from tests.fuzz import sources, stores
from tests.fuzz.outcome import advisor
from tests.fuzz.stores import Odd

STUDY = "study: {}\nobjective: {{metric: m, direction: minimize}}\nparameters: {{lr: {{low: 0.1, high: 1}}}}\ntrials: 1\n"


@pytest.mark.parametrize(
    ("name", "content"),
    [("pyproject.toml", "tool = 1"), ("advisor.toml", "a = " + "9" * 5000), ("advisor.toml", "a = " + "[" * 3000)],
)
def test_settings(name: str, content: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    if name == "pyproject.toml":
        assert find_settings(tmp_path) == {}
        return
    with pytest.raises(AdvisorError, match="not readable as TOML"):
        find_settings(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("!!bool x: 1", "tags"),
        ("a: !!timestamp x", "tags"),
        ("a: !!int ''", "tags"),
        ("!!pairs [[a]: b]", "tags"),
        (r'study: "\ud800"', "unpaired surrogate"),
    ],
)
def test_a_study_file(text: str, message: str) -> None:
    with pytest.raises(AdvisorError, match=message):
        spec_yaml.parse_study_file(text)


def test_a_study_of_thousands_of_parameters_is_read_in_seconds() -> None:
    fixed = "".join(f"  p{i}: {{role: fixed, value: 1}}\n" for i in range(2000))
    begun = time.process_time()
    spec_yaml.parse_study_file(f"study: s\nobjective: {{metric: m, direction: minimize}}\nparameters:\n{fixed}")
    assert time.process_time() - begun < 20


def test_a_long_name_makes_no_long_error(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(STUDY.format("s") + f"? {'x' * 10_000}\n: 1\n")
    outcome = advisor("sample", str(tmp_path / "s.yaml"), folder=tmp_path)
    assert outcome.status == 2
    assert outcome.err.endswith("is not a key of a study file\n")


def test_a_zero_byte_in_a_command(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(STUDY.format(r'"a\0b"'))
    outcome = advisor("run", str(tmp_path / "s.yaml"), "--dry-run", "--", "train", "{study}", "{lr}", folder=tmp_path)
    assert "zero byte" in outcome.err


@pytest.mark.parametrize("word", ["\x1b[31m", "\u202eevil", "a\u2028b\n'", "\\", "\udcff", "$(touch x)", ""])
def test_a_word_that_is_shown_is_one_word_of_a_shell(word: str) -> None:
    shown = shell.command_line(["printf", "%s", word])
    assert shown.isprintable()
    assert subprocess.run(["bash", "-c", shown], capture_output=True, check=True).stdout == word.encode(
        "utf-8", "surrogateescape"
    )


@pytest.mark.parametrize("text", ["!!bool x", "!!timestamp x", "!!int ''"])
def test_yaml_that_its_own_reader_stumbles_over(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(f"a: {text}")
    with pytest.raises(AdvisorError, match="is not YAML"):
        files.read_yaml(tmp_path / "a.yaml")


def test_a_number_too_long_to_write_as_a_name(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(f"a: {{? 0x{'f' * 5000} : 1}}\n? 0x{'f' * 5000}\n: 2\n")
    assert files.flatten_mapping(files.read_mapping(tmp_path / "a.yaml"), ".") == {"a.a huge number": 1}


@pytest.mark.parametrize(
    ("header", "message"),
    [("x" * 200_000, "not a table"), ("a\rb", "not a table"), ("a," * 400_000 + "b", "twice")],
    ids=["long", "half a line", "many"],
)
def test_the_first_line_of_a_table(header: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"{header}\n1\n")
    with pytest.raises(AdvisorError, match=message):
        TableImporter("csv").find_runs(tmp_path / "a.csv")


def test_bytes_that_are_no_text_in_a_bad_row(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.csv").write_bytes("step,val,größe\n0,1.5,ü\n".encode() + b"1,2,\xff,4,5\n2,2.5,\xe9\n3,1,\xc3")
    rows = metric_tables.read_run(tmp_path / "a.csv", TableLayout(step_column="step"))
    assert rows.curves.points()["val"].values.tolist() == [1.5, 2.5, 1.0]
    assert capfd.readouterr().err == ""


def test_a_step_of_other_digits(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"step": "²", "loss": 1}\n')
    with pytest.raises(AdvisorError, match="whole number"):
        metric_tables.read_run(tmp_path / "a.jsonl", TableLayout(step_column="step"))


@pytest.mark.parametrize(
    ("columns", "message"), [(["a", "a"], "twice"), (["run", "step"], "nested values")], ids=["twice", "no name"]
)
def test_the_columns_of_a_parquet_file(columns: list[str], message: str, tmp_path: Path) -> None:
    table = pa.table([pa.array([{"x": 1}]), pa.array([1])], names=columns)
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(AdvisorError, match=message):
        TableImporter("csv").find_runs(tmp_path / "a.parquet")


def test_the_state_of_a_ray_experiment(tmp_path: Path) -> None:
    for number, state in enumerate(('{"trial_data": [[]]}', '{"trial_data": ["' + "[" * 5000 + '"]}')):
        (tmp_path / f"experiment_state-{number}.json").write_text(state)
        assert ray._ExperimentState(tmp_path).statuses == {}


def test_a_time_of_ray_beyond_all_numbers(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(f'{{"training_iteration": 1, "timestamp": 1{"0" * 400}, "loss": 1}}\n')
    assert ray._started_ms(tmp_path / "result.json") is None


def test_a_count_of_five_thousand_digits(tmp_path: Path) -> None:
    state = {**sources.TRAINER, "max_steps": "9" * 5000}
    (tmp_path / "trainer_state.json").write_text(json.dumps(state))
    (run,) = trainer_state.find_runs(tmp_path).runs
    assert "advisor.max_train_steps" not in run.read().tags


def test_an_event_that_is_none(tmp_path: Path) -> None:
    records = list(sources.event_records())
    (tmp_path / "events.out.tfevents.1").write_bytes(sources.events_of([*records[:3], b"\xff\xff"]))
    (run,) = tensorboard.find_runs(tmp_path).runs
    assert "damaged" in run.read().notes[0]


@pytest.mark.parametrize("value", ["x", None])
def test_a_journal_of_optuna_with_something_else_in_it(value: object, tmp_path: Path) -> None:
    row = {**sources.JOURNAL[3], "step": 2, "intermediate_value": value}
    rows = [{**sources.JOURNAL[0], "study_name": 5}, *sources.JOURNAL[1:4], row, sources.JOURNAL[4]]
    (tmp_path / "j.log").write_bytes(sources.lines(rows))
    (run,) = OptunaStorage().find_runs(tmp_path / "j.log").runs
    assert run.experiment == "5"
    assert run.read().points["value"].values.tolist() == [0.5]


@pytest.mark.parametrize("name", ["", "x" * 10_000])
def test_a_hyperparameter_without_a_name_or_with_one_of_pages(name: str) -> None:
    assert parse_params([{name: "0.1", "lr": "0.1"}, {name: "0.2"}]) == [{"lr": 0.1}, {}]


def test_steps_where_floats_lie_far_apart() -> None:
    steps = [2**62, 2**62 + 10]
    curve = TrialCurve(trial="t", steps=steps, values=[1.0, 0.5])
    assert len(_step_axis_scale([curve], "linear", 0).ticks()) >= 1
    assert np.isfinite(_step_axis_scale([curve], "linear", 0)(steps[1]))


def odd(
    kinds: str = "falling", *, runs: int = 2, lr: str = "0.1", others: dict[str, list[str]] | None = None, **more: Any
) -> Odd:
    """An experiment whose losses are of these kinds. others: kinds of other metrics."""
    usual = {"seed": 0, "params": {"lr": [lr]}, "tags": {}, "of_experiment": {}, "status": ["FINISHED"], "stage": ["active"]}
    usual |= {"name": "run", "experiment": "study", "many_tags": False, "raw": False}
    return Odd(runs=runs, metrics={"val/loss": kinds.split(", "), **(others or {})}, **{**usual, **more})


NESTED = "batch_norm chance checkpoints config launch loader norm_layers ranks schedule valid_class_counts".split()
ODD = {
    "an experiment without a name": odd(runs=3, lr="log", name="", experiment=""),
    "an experiment with a name of pages": odd(runs=3, lr="log", name="", experiment="x" * 10_000),
    "the only rate is infinite": odd(lr="inf"),
    "facts nested too deeply": odd(tags={f"advisor.{name}": "[" * 3000 for name in NESTED}),
    "shuffled steps and huge losses": odd(
        "steps shuffled, all huge, all huge",
        runs=3,
        seed=104290,
        others={key: ["falling"] for key in ("train/learning_rate", "loss", "system/gpu")},
    ),
    "huge and tiny losses": odd("all huge, tiny, steps huge", runs=3, seed=104290),
    "huge steps": odd("steps huge", runs=3, seed=104290),
    "tiny rates": odd(runs=3, seed=104290, others={"lr": ["tiny"]}),
}


@pytest.mark.parametrize("which", ODD)
def test_an_odd_store(which: str, empty_store: Path, tmp_path: Path) -> None:
    path = stores.write(empty_store, tmp_path, ODD[which])
    words = ("analyze", stores.ID, "--tracking-uri", f"sqlite:///{path}", "--out", str(tmp_path / "out"))
    assert advisor(*words, folder=tmp_path, writes=("out",)).status == 0
    found = json.loads((tmp_path / "out" / "findings.json").read_bytes())
    assert [v["reason"] for v in found["verdicts"] if v["status"] == "broken"] == []


def test_a_line_separator_in_json(empty_store: Path, tmp_path: Path) -> None:
    path = stores.write(empty_store, tmp_path, odd(params={}, name="a\u2028b"))
    advisor("history", "--format", "json", "--tracking-uri", f"sqlite:///{path}", folder=tmp_path)


def test_a_control_character_in_a_warning(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(STUDY.format("s") + 'schedule: {"\\x1f": 10}\n')
    advisor("run", str(file), "--dry-run", "--", "train", "{args}", folder=tmp_path)

"""CSV, JSON lines and Parquet as people write them."""

import json
import math
import os
import re

import numpy as np
import pytest
from imports import assert_same, falling, stored

from advisor.engine.judge import judge
from advisor.engine.registry import load_rules
from advisor.tracking.stores.reading import read_experiment
from advisor.tracking.study.assemble import assemble

RATES = [1e-4, 1e-3, 1e-2, 1e-1]


def mixed(folder, header="trial,step,lr,optimizer,val_loss,train_loss"):
    """One file in which the rows of all runs are mixed."""
    lines, expected = [header], {}
    for step in range(0, 60, 2):
        for i, rate in enumerate(RATES):
            value = dict(falling(rate, range(0, 60, 2)))[step]
            lines.append(f"t{i},{step},{rate},adam,{value!r},{value / 2 if step % 4 else ''}")
    for i, rate in enumerate(RATES):
        curve = falling(rate, range(0, 60, 2))
        expected[f"t{i}"] = {"val_loss": curve, "train_loss": [(s, v / 2) for s, v in curve if s % 4]}
    path = folder / "results.csv"
    path.write_text("\n".join(lines) + "\n")
    return path, expected


def test_one_file_with_a_run_column(tmp_path, imported):
    path, expected = mixed(tmp_path)
    experiment = imported(["csv", path, "--params", "lr"], "results", expected, "val_loss")
    assert experiment.runs[2].params == {"lr": "0.01", "optimizer": "adam"}


def test_constant_columns_get_a_note(tmp_path, advisor):
    path, _ = mixed(tmp_path)
    _, _, err = advisor("import", path)
    assert (
        "These columns are constant within each run and differ between runs; if they are hyperparameters, pass --params lr."
        in err
    )


def test_one_file_per_run_with_parameters_beside(tmp_path, imported):
    folder = tmp_path / "logs"
    (folder / "deep").mkdir(parents=True)
    expected = {}
    for i, rate in enumerate(RATES):
        curve = falling(rate, range(0, 60, 2))
        name = f"deep/run{i}" if i == 3 else f"run{i}"
        (folder / f"{name}.csv").write_text("Epoch;val loss\n" + "".join(f"{s}.0;{v!r}\n" for s, v in curve))
        (folder / f"{name}.yaml").write_text(f"lr: {rate}\nmodel:\n  depth: {i}\nodd: !!python/object:os.system {{}}\n")
        expected[name] = {"val loss": curve}
    experiment = imported(["csv", folder], "logs", expected, "val loss")
    assert {r.name: r.params["model.depth"] for r in experiment.runs}["deep/run3"] == "3"


def test_json_lines(tmp_path, imported):
    folder = tmp_path / "logs"
    folder.mkdir()
    expected = {}
    for i, rate in enumerate(RATES):
        curve = falling(rate, range(0, 60, 2))
        rows = [{"iteration": s, "val": {"loss": v}, "lr": rate, "tag": "x", "on": True, "none": None} for s, v in curve]
        text = "".join(json.dumps(row) + "\n" for row in rows) + '{"iteration": 60, "val": {"loss": NaN}}\n'
        text += '{"iteration": 61, "val": {"loss": "\u0131nf"}}\n'  # a dotless i, which is no number
        text += '{"iteration": 62, "val": {"loss": -Infinity}}\n{"iteration": 64, "val": {"lo'  # still being written
        (folder / f"r{i}.jsonl").write_text(text)
        expected[f"r{i}"] = {"val/loss": [*curve, (60, math.nan), (62, -math.inf)]}
    imported(["jsonl", folder, "--params", "lr"], "logs", expected, "val/loss")


def test_values_steps_and_times_at_their_limits(tmp_path, advisor, uri):
    path = tmp_path / "odd.csv"
    rows = ["1,1e308,nan,1700000000", "2,-1e400,inf,1700000000500", "9007199254740993,5e-324,,", "4.0,text,-inf,-5"]
    path.write_text("step,a,b,timestamp\n" + "\n".join(rows) + "\n5,1,2\n7,")
    assert advisor("import", "csv", path, "--experiment", "odd")[0] == 0
    big = 2**53 + 1
    a, b = [(1, 1e308), (2, -math.inf), (big, 5e-324)], [(1, math.nan), (2, math.inf), (4, -math.inf)]
    assert_same(stored(uri, "odd"), {"odd": {"a": a, "b": b}})
    times = read_experiment("odd", tracking_uri=uri).points["a"].times
    np.testing.assert_array_equal(np.sort(times), [1.7e9, 1.7e9 + 0.5, math.nan])


def test_a_file_that_grows_is_completed(tmp_path, advisor, uri):
    path = tmp_path / "run.csv"
    path.write_text("step,loss\n0,1.0\n1,nan\n")
    advisor("import", path, "--experiment", "e")
    path.write_text(path.read_text() + "2,0.5\n")
    assert advisor("import", path, "--experiment", "e")[1].startswith("Imported 0 trials with 1 point, 1 extended")
    assert_same(stored(uri, "e"), {"run": {"loss": [(0, 1.0), (1, math.nan), (2, 0.5)]}})


def test_given_objective_direction_and_columns(tmp_path, advisor, refused, uri):
    path = tmp_path / "run.tsv"
    path.write_text("n\tgain\twhen\n3\t1.0\t0\n6\t2.0\t10\n")
    given = ["--step", "n", "--time", "when", "--objective", "gain", "--direction", "maximize", "--experiment", "e"]
    assert advisor("import", "csv", path, *given)[0] == 0
    experiment = read_experiment("e", tracking_uri=uri)
    assert experiment.tags == {"advisor.objective": "gain", "advisor.direction": "maximize"}
    assert stored(uri, "e") == {"run": {"gain": [(3, 1.0), (6, 2.0)]}}
    assert np.ptp(experiment.points["gain"].times) == 10
    assert "has no column 'x'; its columns are: n, gain, when" in refused("csv", path, "--step", "x")


BAD = [
    ("csv", "step,loss\n1.5,1\n", "row 1, 'step': the step '1.5' is not a whole number"),
    ("csv", "step,loss\n1e30,1\n", "the step 1e+30 is too large"),
    ("csv", f"step,loss\n{10**30},1\n", "is too large; steps must be below 2^63"),
    ("csv", "step,step\n1,1\n", "has the column 'step' twice"),
    ("csv", "", "its first line must name the columns"),
    ("csv", "\0\0\0\0", "its first line must name the columns"),
    ("csv", "step,loss\n", "contains no row with a number"),
    ("csv", "words,more\na,b\nc,d\n", "contains no row with a number"),
    ("jsonl", '{"step": 1, "loss": 1}\nhello\n{"step": 2}\n', "line 2 is not JSON"),
    ("jsonl", "[1, 2]\n", "line 1 is not a JSON object"),
    ("jsonl", '{"step": 0.5, "loss": 1}\n', "the step '0.5' is not a whole number"),
    ("jsonl", f'{{"step": {10**30}, "loss": 1}}\n', "is too large"),
    ("jsonl", '{"step": 1, "loss": ' + "9" * 5000 + "}\n", "is not JSON"),
    ("jsonl", '{"a":' * 5000 + "1" + "}" * 5000 + "\n", "line 1"),
    ("parquet", "PAR1 not at all", "is not a Parquet file"),
]


@pytest.mark.parametrize(("kind", "text", "message"), BAD)
def test_bad_files_are_refused(tmp_path, refused, kind, text, message):
    path = tmp_path / f"run.{kind}"
    path.write_text(text)
    assert message in refused("jsonl" if kind == "jsonl" else "csv", path)


def test_bad_parameters_and_paths_are_refused(tmp_path, refused):
    path = tmp_path / "run.csv"
    path.write_text("step,loss\n1,1\n")
    bomb = "a0: &a0 {x: 1}\n" + "".join(f"a{i}: &a{i} {{p: *a{i - 1}, q: *a{i - 1}}}\n" for i in range(1, 40))
    for beside, message in (
        ("[1, 2]", "must hold a mapping"),
        ("a: [", "is not YAML"),
        (bomb, "more than 5,000 values or 12 levels"),
        ("x: " + "y" * 3_000_000, "is larger than 2 MB"),
    ):
        (tmp_path / "run.yaml").write_text(beside)
        assert message in refused("csv", path)
    assert "No such file" in refused("csv", tmp_path / "absent.csv")
    assert "cannot recognise which tool wrote" in refused("auto", tmp_path / "run.yaml")
    assert ".jsonl, .ndjson file in this folder" in refused("jsonl", tmp_path)
    strange = tmp_path / os.fsdecode(b"\xff\xfe")
    strange.mkdir()
    assert "\\xff\\xfe" in refused("csv", strange)


def test_a_column_of_epochs_makes_steps_epochs(tmp_path, imported):
    lines, expected = ["trial,epoch,lr,val_loss"], {}
    for i, rate in enumerate(RATES):
        curve = falling(rate, range(1, 31))
        expected[f"t{i}"] = {"val_loss": curve}
        lines += [f"t{i},{epoch},{rate},{value!r}" for epoch, value in curve]
    path = tmp_path / "results.csv"
    path.write_text("\n".join(lines) + "\n")
    study = assemble(imported(["csv", path, "--params", "lr"], "results", expected, "val_loss"), objective="val_loss")
    assert study.unit == "epoch"
    assert (study.at(1200), study.length(1), study.length(1200)) == ("epoch 1,200", "1 epoch", "1,200 epochs")
    assert any("is an epoch" in warning for warning in study.warnings)
    messages = [f"{f.message} {f.action}" for v in judge(study, load_rules()) for f in v.findings]
    assert any("epoch" in text for text in messages), messages
    assert not any(re.search(r"\d steps|step \d", text) for text in messages), messages

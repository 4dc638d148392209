"""The results.tsv of coding agents: rows become runs, crashes have no result, and the commands that follow read them sensibly."""

import pytest
from imports import dump, stored

from advisor.tracking.stores.reading import read_experiment

HEADER = "commit\tval_bpb\tmemory_gb\tstatus\tdescription\n"
ROWS = (
    "a1b2c3d\t0.997900\t44.0\tkeep\tbaseline\n"
    "b2c3d4e\t0.993200\t44.2\tkeep\tincrease LR to 0.04\n"
    'c3d4e5f\t1.005000\t44.0\tdiscard\tswitch to "GeLU", as others do\n'
    "d4e5f60\t0.000000\t0.0\tcrash\tdouble model width (OOM)\n"
)


def write(folder, text, name="results.tsv"):
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(text)
    return path


@pytest.fixture
def table(tmp_path):
    return write(tmp_path / "speedrun", HEADER + ROWS)


def test_each_row_is_a_run_and_a_crash_has_no_result(table, advisor, uri):
    status, out, err = advisor("import", table)
    assert (status, out) == (0, "Imported 4 trials with 6 points. Experiments:\n  speedrun\n")
    assert err == "Importing as: advisor import results-tsv\n"
    assert stored(uri, "speedrun") == {
        "a1b2c3d": {"val_bpb": [(0, 0.9979)], "memory_gb": [(0, 44.0)]},
        "b2c3d4e": {"val_bpb": [(0, 0.9932)], "memory_gb": [(0, 44.2)]},
        "c3d4e5f": {"val_bpb": [(0, 1.005)], "memory_gb": [(0, 44.0)]},
        "d4e5f60": {},
    }
    experiment = read_experiment("speedrun", tracking_uri=uri)
    assert (experiment.tags["advisor.objective"], experiment.tags["advisor.direction"]) == ("val_bpb", "minimize")
    runs = sorted(experiment.runs, key=lambda run: run.started or 0)
    assert [run.name for run in runs] == ["a1b2c3d", "b2c3d4e", "c3d4e5f", "d4e5f60"]
    assert [run.status for run in runs] == ["FINISHED"] * 3 + ["FAILED"]
    assert runs[2].tags["advisor.git_commit"] == "c3d4e5f"
    assert runs[2].tags["advisor.change"] == 'switch to "GeLU", as others do'


def test_an_import_after_more_rows_adds_only_these(table, advisor, uri):
    advisor("import", table, "-q")
    before = dump(uri)
    advisor("import", table, "-q")
    assert dump(uri) == before
    table.write_text(HEADER + ROWS + "a1b2c3d\t0.9981\t44.0\tdiscard\tbaseline again\n")
    status, out, err = advisor("import", "results-tsv", table)
    assert (status, err) == (0, "")
    assert out.startswith("Imported 1 trial with 2 points, 4 were imported before. Experiments:\n")
    assert list(stored(uri, "speedrun"))[-1] == "a1b2c3d-2"


def test_the_commands_say_that_the_noise_is_unknown(table, tmp_path, advisor):
    advisor("import", table, "-q")
    status, out, _ = advisor("gate", "b2c3d4e", "-e", "speedrun")
    assert status == 3
    assert out.splitlines()[0] == (
        "Not decided: run 1 more seed of b2c3d4e and 2 more seeds of a1b2c3d, and ask again after each run. "
        "No setting was run twice, so the variation between seeds is unknown."
    )
    assert advisor("gate", "d4e5f60", "-e", "speedrun")[0] == 1  # a crash is discarded
    _, out, _ = advisor("history", "speedrun", "--near", "c3d4e5f")
    assert 'c3d4e5f  1.005  not judged  (1 run; switch to "GeLU", as others do)' in out
    assert "d4e5f60  no result  " in out
    _, out, _ = advisor("analyze", "speedrun", "--out", tmp_path / "report", "-q")
    assert out == ""
    _, out, _ = advisor("analyze", "speedrun", "--out", tmp_path / "report", "--brief")
    assert '"best":{"trial":"b2c3d4e","value":0.9932}' in out
    assert '"action":"Repeat the best setting, commit b2c3d4e: 5 seeds' in out


def test_repeats_of_a_commit_are_a_noise_floor(table, advisor):
    again = "".join(f"a1b2c3d\t0.99{i}9\t44.0\tdiscard\tbaseline again\n" for i in (7, 8, 6))
    table.write_text(HEADER + ROWS + again)
    advisor("import", table, "-q")
    _, out, _ = advisor("gate", "b2c3d4e", "-e", "speedrun")
    assert "(4 runs, commit a1b2c3d), the best repeated setting" in out
    assert "between seeds (3 degrees of freedom)" in out


@pytest.mark.parametrize(
    ("text", "objective", "direction", "failed"),
    [
        ("commit metric status|a1b2c3d 0.5 keep|b1b2c3d 0.7 keep|c 0.0 discard", "metric", "maximize", 1),
        ("commit accept_len memory_gb status|a1b2c3d 1.8 3 keep|b1b2c3d   crash", "accept_len", None, 1),
        ("iteration commit auc delta status|0 a1b2c3d 85.2  baseline|1 - 86.5 +1.3 keep|2 - 8 -2 keep", "auc", "maximize", 0),
        ("commit memory_gb val_loss description|0000000 0.0 0.0 crash|a1b2c3d 2 1.5 base", "val_loss", "minimize", 1),
        ("commit loss status|a1b2c3d 0.2 keep|b1b2c3d nan discard|c1b2c3d  in_progress", "loss", "minimize", 1),
        ("when commit cost status paper|26 a1b2c3d 1,024.5 keep -|26 b1b2c3d 900 TIMEOUT 2503.1", "cost", "minimize", 1),
    ],
)
def test_other_columns(tmp_path, advisor, uri, text, objective, direction, failed):
    status, _, err = advisor("import", write(tmp_path / "x", text.replace(" ", "\t").replace("|", "\n")))
    assert status == 0, err
    experiment = read_experiment("x", tracking_uri=uri)
    assert (experiment.tags["advisor.objective"], experiment.tags.get("advisor.direction")) == (objective, direction)
    assert sum(run.status == "FAILED" for run in experiment.runs) == failed
    assert 0.0 not in experiment.points[objective].values
    commits = [run.tags["advisor.git_commit"] for run in experiment.runs]
    assert len(set(commits)) == len(commits)  # rows without a commit are no repeats of each other


def test_files_of_windows_and_rows_with_missing_cells(tmp_path, advisor, uri):
    text = "\ufeff" + (HEADER + "a1b2c3d\t0.9979\nb2c3d4e\t0.9932\t44.2\n").replace("\n", "\r\n")
    (tmp_path / "results.tsv").write_bytes(text.encode())
    assert advisor("import", tmp_path / "results.tsv", "--experiment", "x", "-q")[0] == 0
    assert stored(uri, "x") == {
        "a1b2c3d": {"val_bpb": [(0, 0.9979)]},
        "b2c3d4e": {"val_bpb": [(0, 0.9932)], "memory_gb": [(0, 44.2)]},
    }


def test_a_row_stays_the_same_run_if_lines_are_added_above_it(table, advisor, uri):
    advisor("import", table, "-q")
    table.write_text("# results of the night\n\n" + HEADER + ROWS)
    _, out, _ = advisor("import", "results-tsv", table)
    assert out.startswith("Imported 0 trials with 0 points, 4 were imported before.")
    assert len(stored(uri, "speedrun")) == 4


def test_columns_set_no_tag_of_ours(tmp_path, advisor, uri):
    text = (
        'commit\tval_loss\tadvisor.gate\tmlflow.user\tadvisor.objective\tidea\na1b2c3d\t0.5\t{"val_loss": {}}\troot\tx\twider\n'
    )
    assert advisor("import", "results-tsv", write(tmp_path / "x", text), "-q")[0] == 0
    (run,) = read_experiment("x", tracking_uri=uri).runs
    assert run.tags["idea"] == "wider"
    assert run.tags["advisor.objective"] == "val_loss"
    assert not {"advisor.gate", "mlflow.user"} & set(run.tags)


def test_different_changes_in_one_commit_are_named(tmp_path, advisor):
    path = write(tmp_path / "x", HEADER + ROWS + "a1b2c3d\t0.99\t44.0\tdiscard\twider\n")
    _, _, err = advisor("import", "results-tsv", path)
    assert "lines 2 and 6 have the same commit and different descriptions" in err


def test_a_bad_table_is_one_line_with_its_line_number(tmp_path, refused):
    for text, message in (
        (HEADER + ROWS + "e5f6071\tgood\t44.0\tkeep\tx\n", "line 6: val_bpb is 'good', which is not a number"),
        (HEADER + ROWS + "e5f6071\t1.0\t44.0\t+1.9\tkeep\tx\n", "line 6: the status is '+1.9'"),
        (HEADER + ROWS + "e5f6071\t0,997\t44.0\tkeep\tx\n", "line 6: val_bpb is '0,997', which is not a number"),
        (HEADER, "has no rows yet"),
        ("", "the first line must name the columns"),
        (ROWS, "the first line must name the columns"),
        (HEADER.replace("memory_gb", "val_bpb") + ROWS, "the first line must name the columns"),
        ("commit\tstatus\na1b2c3d\tkeep\n", "has no column of numbers; its columns are: commit, status"),
    ):
        assert message in refused("results-tsv", write(tmp_path, text))
    assert "it contains no results.tsv" in refused("results-tsv", write(tmp_path / "empty", "x", "other.txt").parent)
    table = write(tmp_path, HEADER + ROWS)
    assert "has no column 'loss'; its columns are: commit" in refused("results-tsv", table, "--objective", "loss")

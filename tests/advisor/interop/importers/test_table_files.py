"""Table files beyond the limits: one clear line instead of a process without memory."""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from advisor.interop.importers import metric_tables, table_files
from advisor.interop.importers.metric_tables import TableLayout
from advisor.model.errors import AdvisorError

TRIALS = "study,trial,params,status,objective,direction\ns,t,{},complete,m,min\n"
Refused = Callable[..., str]


@pytest.fixture(scope="module")
def bomb(tmp_path_factory):
    """A file of 1 MB with 60 million points."""
    path = tmp_path_factory.mktemp("bomb") / "bomb.parquet"
    rows = 1_000_000
    constants = {"study": "s", "trial": "t", "metric": "m"}
    columns = {
        name: pa.array([text]).dictionary_encode().take(pa.array(np.zeros(rows, int))) for name, text in constants.items()
    }
    table = pa.table({**columns, "step": np.zeros(rows, int), "value": np.zeros(rows)})
    with pyarrow.parquet.ParquetWriter(path, table.schema, compression="zstd") as writer:
        for _ in range(60):
            writer.write_table(table)
    assert path.stat().st_size < 2_000_000
    return path


def test_a_small_parquet_file_of_many_rows_is_refused(bomb, refused):
    assert "holds 60,000,000 rows; the limit is 50,000,000" in refused("csv", bomb)
    (bomb.parent / "trials.csv").write_text(TRIALS)
    assert "holds 60,000,000 rows" in refused("tables", bomb.parent / "trials.csv", bomb)


def test_a_parquet_file_that_unpacks_to_too_much_is_refused(tmp_path, refused, monkeypatch):
    monkeypatch.setattr(table_files, "MAX_DECODED_BYTES", 10_000_000)
    table = pa.table({"step": [0], "note": ["x" * 20_000_000]})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet", use_dictionary=False, compression="zstd")
    assert (tmp_path / "a.parquet").stat().st_size < 10_000
    assert "unpacks to 0.02 GB" in refused("csv", tmp_path / "a.parquet")


def test_long_texts_that_repeat_are_not_decoded(tmp_path):
    rows = 50_000  # together 5 GB of text
    texts = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array(["x" * 100_000]))
    pyarrow.parquet.write_table(
        pa.table({"step": np.arange(rows), "loss": np.ones(rows), "note": texts}), tmp_path / "a.parquet"
    )
    read = metric_tables.read_run(tmp_path / "a.parquet", TableLayout(step_column="step"))
    assert (len(read.curves), read.all_params) == (rows, {"note": "x" * 100_000})


@pytest.mark.parametrize("start", ["2,0.4,", '2,0.4,"a\n'], ids=["plain", "quoted"])
def test_a_csv_line_of_50_megabytes_is_refused(start, tmp_path, refused):
    (tmp_path / "a.csv").write_text("step,loss,note\n1,0.5,a\n" + start + "x" * 50_000_000 + "\n3,0.1,b\n")
    assert "has a line longer than 32 MB" in refused("csv", tmp_path / "a.csv")
    (tmp_path / "trials.csv").write_text(TRIALS + '"' + "x\n" * 25_000_000)
    (tmp_path / "curves.csv").write_text("study,trial,metric,step,value\n")
    line = refused("tables", tmp_path / "trials.csv", tmp_path / "curves.csv")
    assert "has a line longer than 32 MB, or an unclosed quote" in line


def test_a_json_line_of_50_megabytes_is_refused(tmp_path, refused):
    (tmp_path / "a.jsonl").write_text('{"step": 1, "note": "' + "x" * 50_000_000 + '"}\n')
    assert "line 1: longer than 32 MB" in refused("jsonl", tmp_path / "a.jsonl")


def test_files_with_too_many_points_or_bad_rows_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(table_files, "MAX_POINTS", 10)
    (tmp_path / "a.csv").write_text("step,a,b\n" + "1,2,3\n" * 6)
    (tmp_path / "a.jsonl").write_text('{"step": 1, "a": 2, "b": 3}\n' * 6)
    for path in tmp_path.iterdir():
        with pytest.raises(AdvisorError, match="holds more than 10 points; split it by run"):
            metric_tables.read_run(path, TableLayout(step_column="step"))
    monkeypatch.setattr(table_files, "_MAX_SKIPPED_ROWS", 5)
    (tmp_path / "a.csv").write_text("step,a,b\n" + "1,2\n" * 6)
    with pytest.raises(AdvisorError, match="is not a CSV table"):
        metric_tables.read_run(tmp_path / "a.csv", TableLayout(step_column="step"))


def test_quoted_line_breaks_end_no_line(monkeypatch, tmp_path):
    monkeypatch.setattr(table_files, "_BLOCK_BYTES", 5)
    path = tmp_path / "a.csv"
    path.write_text('a,b\n1,"x\ny ""z"""\n2,"\n\n"\n3,ü\n')
    rows = [row for batch in table_files.read_batches(path, strict=True) for row in batch.to_pylist()]
    assert rows == [{"a": "1", "b": 'x\ny "z"'}, {"a": "2", "b": "\n\n"}, {"a": "3", "b": "ü"}]

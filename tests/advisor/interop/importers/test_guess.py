"""The tool that wrote some files is recognised by their names."""

import pytest

from advisor.interop.importers.guess import detect_import_kinds


@pytest.mark.parametrize(
    ("files", "kind"),
    [
        (["events.out.tfevents.1.h", "hparams.yaml"], "tensorboard"),
        (["offline-run-1/run-1.wandb"], "wandb"),
        (["version_0/metrics.csv", "version_0/events.out.tfevents.1.h"], "lightning"),
        (["checkpoint-1/trainer_state.json", "runs/x/events.out.tfevents.1.h"], "trainer-state"),
        (["t/params.json", "t/result.json", "t/events.out.tfevents.1.h"], "ray"),
        (["study_0/w/trial_1/measurements.csv"], "algoperf"),
        (["a.csv", "b.csv"], "csv"),
        (["lr-1/log.csv", "lr-2/log.csv"], "csv"),
        (["mlflow.db", "lightning_logs/metrics.csv"], "lightning"),
        (["a.jsonl", "a.json"], "jsonl"),
    ],
)
def test_kinds_are_recognised_by_their_files(tmp_path, files, kind):
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert detect_import_kinds(str(tmp_path)) == [kind]


def test_several_tools_in_a_folder_are_all_named(tmp_path, advisor):
    for name, content in (("l/metrics.csv", "step,loss\n1,0.5\n"), ("h/trainer_state.json", '{"log_history": [{"loss": 1}]}')):
        (tmp_path / "out" / name).parent.mkdir(parents=True)
        (tmp_path / "out" / name).write_text(content)
    status, out, err = advisor("import", tmp_path / "out")
    assert (status, "Imported 1 trial with 1 point." in out) == (0, True)
    assert err.splitlines() == [
        "Importing as: advisor import trainer-state",
        f"Note: the folder seems to hold runs of another kind, too: advisor import lightning {tmp_path / 'out'}",
    ]


def test_mlflows_own_store_needs_no_import(tmp_path, refused):
    for name in ("mlflow.db", "mlruns/1/artifacts/curves.parquet"):
        (tmp_path / "here" / name).parent.mkdir(parents=True)
        (tmp_path / "here" / name).touch()
    assert "needs no import" in refused("auto", tmp_path / "here")
    assert "needs no import" in refused("auto", tmp_path / "here" / "mlflow.db")


def test_a_path_that_is_not_there_is_no_unknown_command(advisor):
    status, _, err = advisor("import", "absent/runs")
    assert (status, len(err.splitlines())) == (2, 1)
    assert "absent/runs is neither an existing path nor one of the formats algoperf, auto, csv" in err

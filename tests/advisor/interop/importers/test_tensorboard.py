"""Event files that PyTorch's own SummaryWriter wrote."""

import math
import os
import struct

import numpy as np
import pytest
from imports import assert_same, dump, stored

pytest.importorskip("tensorboard")
torch_tensorboard = pytest.importorskip("torch.utils.tensorboard")

RATES = [1e-4, 1e-3, 1e-2, 1e-1]
STEPS = range(0, 60, 2)


def as_single(value):
    return float(np.float32(value))


def write(folder, curve, *, new_style=False, tag="val/loss"):
    with torch_tensorboard.SummaryWriter(str(folder)) as writer:
        for step, value in curve:
            writer.add_scalar(tag, value, step, new_style=new_style)


def loss(rate, steps=STEPS):
    best = abs(math.log10(rate) + 2) / 4
    return [(s, as_single(best + 2 * math.exp(-s / 30))) for s in steps]


def test_runs_with_hyperparameters_of_both_forms_of_scalars(tmp_path, imported):
    root = tmp_path / "runs"
    expected = {}
    results = {"hp/best": 0.5, "hparam/loss": 0.4, "hp_metric": -1.0}  # the last two are no curves
    for i, rate in enumerate(RATES):
        with torch_tensorboard.SummaryWriter(str(root / f"lr{i}")) as writer:
            for step, value in loss(rate):
                writer.add_scalar("val/loss", value, step)
                writer.add_scalar("train/loss", value / 2, step, new_style=True)
                writer.add_scalars("acc", {"train": step / 100, "valid": step / 200}, step)
            writer.add_scalar("train/loss", math.nan, 60, new_style=True)
            writer.add_histogram("weights", np.arange(10.0), 1)
            writer.add_text("note", "hello", 1)
            writer.add_hparams({"lr": rate, "batch_size": 32, "optimizer": "adam", "nesterov": True}, results)
        expected[f"lr{i}"] = {
            "val/loss": loss(rate),
            "train/loss": [*((s, v / 2) for s, v in loss(rate)), (60, math.nan)],
            "acc/train": [(s, as_single(s / 100)) for s in STEPS],
            "acc/valid": [(s, as_single(s / 200)) for s in STEPS],
            "hp/best": [(0, 0.5)],
        }
    experiment = imported(["tensorboard", root], "runs", expected, "val/loss")
    first = experiment.runs[0]
    assert first.params == {"lr": "0.0001", "batch_size": "32", "optimizer": "adam", "nesterov": "1"}
    assert first.tags["advisor.batch_size"] == "32"
    assert np.isfinite(experiment.points["val/loss"].times).all()  # the wall clock is kept
    assert (np.diff(experiment.points["val/loss"].times[:30]) >= 0).all()
    assert first.ended is not None


def test_a_restarted_run_is_one_and_a_run_that_went_on_is_completed(tmp_path, advisor, uri):
    root = tmp_path / "runs"
    write(root / "a", loss(0.01, range(10)))
    write(root / "b", loss(0.1, range(10)))
    assert advisor("import", root)[1].startswith("Imported 2 trials with 20 points.")
    os.utime(next((root / "b").iterdir()), (1, 1))  # touched, not grown
    assert "1 extended" not in advisor("import", root)[1]
    write(root / "a", loss(0.01, range(10, 25)))
    status, out, _ = advisor("import", root)
    assert (status, out.splitlines()[0]) == (
        0,
        "Imported 0 trials with 15 points, 1 extended, 1 was imported before. Experiments:",
    )
    assert_same(stored(uri, "runs"), {"a": {"val/loss": loss(0.01, range(25))}, "b": {"val/loss": loss(0.1, range(10))}})
    before = dump(uri)
    advisor("import", root)
    assert dump(uri) == before


def test_keras_folders_are_one_run(tmp_path, advisor, uri):
    write(tmp_path / "logs/run/train", [(0, 1.0)], tag="epoch_loss")
    write(tmp_path / "logs/run/validation", [(0, 2.0)], tag="epoch_loss")
    assert advisor("import", "tensorboard", tmp_path / "logs")[0] == 0
    assert stored(uri, "logs") == {"run": {"train/epoch_loss": [(0, 1.0)], "validation/epoch_loss": [(0, 2.0)]}}


def test_sessions_of_one_writer_are_trials_of_their_own(tmp_path, advisor, uri):
    with torch_tensorboard.SummaryWriter(str(tmp_path / "logs/sweep")) as writer:
        writer.add_scalar("started", 1.0, 0)
        for rate in (0.1, 0.2):
            writer.add_hparams({"lr": rate}, {"acc": rate})
    assert advisor("import", "tensorboard", tmp_path / "logs")[0] == 0
    assert sorted(m["acc"][0][1] for m in stored(uri, "logs").values() if "acc" in m) == [as_single(0.1), as_single(0.2)]


def test_a_file_that_is_being_written_gives_what_it_has(tmp_path, advisor, uri):
    write(tmp_path / "runs/a", loss(0.01))
    (event,) = (tmp_path / "runs/a").iterdir()
    event.write_bytes(event.read_bytes()[:-9])
    status, _, err = advisor("import", tmp_path / "runs")
    assert status == 0
    assert "is truncated or damaged at byte" in err
    assert stored(uri, "runs")["a"]["val/loss"] == loss(0.01)[:-1]


def test_what_cannot_be_read_is_refused(tmp_path, refused):
    (tmp_path / "empty").mkdir()
    assert "no event files" in refused("tensorboard", tmp_path / "empty")
    assert "No such file" in refused("tensorboard", tmp_path / "absent")
    (tmp_path / "text.csv").write_text("a,b\n")
    assert "is not an event file" in refused("tensorboard", tmp_path / "text.csv")
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    assert "cannot read" in refused("tensorboard", loop)
    (tmp_path / "circle").mkdir()
    (tmp_path / "circle/again").symlink_to(tmp_path / "circle")
    assert "no event files" in refused("tensorboard", tmp_path / "circle")
    for name, content in (("noise", b"\x93" * 500), ("huge", struct.pack("<Q", 1 << 60) + b"\0" * 50), ("nothing", b"")):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "events.out.tfevents.1.host").write_bytes(content)
        assert "contain no scalar" in refused("tensorboard", folder)


def test_one_damaged_run_does_not_keep_the_others_out(tmp_path, advisor, uri):
    write(tmp_path / "runs/good", loss(0.01))
    bad = tmp_path / "runs" / os.fsdecode(b"b\xe4d")
    bad.mkdir()
    (bad / "events.out.tfevents.1.host").write_bytes(b"\0" * 40)
    status, out, err = advisor("import", tmp_path / "runs")
    assert status == 2
    assert out.startswith("Imported 1 trial")
    assert "1 run could not be read and was left out" in err
    assert list(stored(uri, "runs")) == ["good"]

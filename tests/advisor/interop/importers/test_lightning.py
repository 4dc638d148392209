"""Folders that Lightning's CSVLogger wrote in real, small trainings."""

import csv
import math
import os

import pytest
from imports import assert_same, stored

from advisor.tracking.stores.reading import read_experiment

pytestmark = pytest.mark.xdist_group("lightning logs")  # they share a training

RATES = [1e-3, 1e-2, 1e-1]


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    lightning = pytest.importorskip("lightning")
    import torch
    from lightning.pytorch.loggers import CSVLogger

    class Line(lightning.LightningModule):
        def __init__(self, lr, depth=2):
            super().__init__()
            self.save_hyperparameters()
            self.line = torch.nn.Linear(4, 1)
            self.lr = lr

        def training_step(self, batch, index):
            loss = (self.line(batch) - batch.sum(1, keepdim=True)).square().mean()
            self.log("train_loss", loss, on_step=True, on_epoch=True)
            return loss

        def validation_step(self, batch, index):
            self.log("val_loss", (self.line(batch) - batch.sum(1, keepdim=True)).square().mean())

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=self.lr)

    folder = tmp_path_factory.mktemp("logs")
    data = torch.utils.data.DataLoader(torch.randn(32, 4, generator=torch.Generator().manual_seed(0)), batch_size=8)
    for rate in RATES:
        trainer = lightning.Trainer(
            max_epochs=4,
            logger=CSVLogger(folder),
            log_every_n_steps=1,
            accelerator="cpu",
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(Line(rate), data, data)
    return folder / "lightning_logs"


def as_written(path):
    found = {}
    with path.open() as file:
        for row in csv.DictReader(file):
            for name, cell in row.items():
                if name != "step" and cell:
                    found.setdefault(name, []).append((int(row["step"]), float(cell)))
    return found


def test_versions_are_runs(logs, imported):
    expected = {f"version_{i}": as_written(logs / f"version_{i}/metrics.csv") for i in range(3)}
    assert {"train_loss_step", "train_loss_epoch", "val_loss", "epoch"} <= set(expected["version_0"])
    experiment = imported(["lightning", logs], "lightning_logs", expected)
    by_name = {run.name: run for run in experiment.runs}
    assert [by_name[f"version_{i}"].params for i in range(3)] == [{"lr": str(r), "depth": "2"} for r in RATES]


def test_one_version_alone_and_hostile_hyperparameters(logs, tmp_path, advisor, uri):
    folder = tmp_path / "version_7"
    folder.mkdir()
    (folder / "metrics.csv").write_text("epoch,step,loss\n0,0,nan\n0,1,inf\n0,2")
    done = tmp_path / "done"
    (folder / "hparams.yaml").write_text(f"lr: 0.1\nobject: !!python/object/apply:os.mkdir ['{done}']\nloop: &l [*l]\n")
    assert advisor("import", folder / "metrics.csv", "--experiment", "one")[0] == 0
    assert not done.exists()
    assert_same(stored(uri, "one"), {"version_7": {"epoch": [(0, 0.0), (1, 0.0)], "loss": [(0, math.nan), (1, math.inf)]}})
    assert read_experiment("one", tracking_uri=uri).runs[0].params["lr"] == "0.1"


def test_what_cannot_be_read_is_refused(tmp_path, refused):
    assert "no metrics.csv there" in refused("lightning", tmp_path)
    (tmp_path / "metrics.csv").write_text("epoch,loss\n1,2\n")
    assert "has no column 'step'" in refused("lightning", tmp_path)
    if os.getuid():
        (tmp_path / "metrics.csv").chmod(0)
        assert "ermission denied" in refused("lightning", tmp_path)

"""Training scripts with the callback, each a program of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from advisor import contract
from tests.adapters.fixture_types import History, OnlyRun

SCRIPT = """
import sys
import torch
{imports}
from advisor_lightning import TuningCallback

class Module(pl.LightningModule):
    def __init__(self, lr):
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Linear(4, 1)
    def training_step(self, batch, index):
        return self.net(batch).square().mean()
    def validation_step(self, batch, index):
        self.log("val_loss", self.net(batch).square().mean(), sync_dist=True)
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.hparams.lr)

if __name__ == "__main__":
    torch.set_num_threads(1)
    pl.seed_everything(0)
    loader = torch.utils.data.DataLoader(torch.randn(64, 4), 8)
    callback = TuningCallback("val_loss", experiment="test", tracking_uri=sys.argv[1])
    pl.Trainer(
        max_epochs=1, accelerator="cpu", callbacks=[callback], logger=False, enable_checkpointing=False,
        enable_progress_bar=False, {trainer}
    ).fit(Module(0.1), loader, loader)
    assert not any(name in sys.modules for name in ("accelerate", "advisor_transformers", "{absent}"))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("imports", "settings", "absent", "steps"),
    [
        pytest.param(*("import lightning.pytorch as pl", 'strategy="ddp", devices=2', "pytorch_lightning", 4), id="two ranks"),
        pytest.param(*("import pytorch_lightning as pl", "devices=1", "lightning", 8), id="older package alone"),
    ],
)
def test_scripts(
    imports: str, settings: str, absent: str, steps: int, uri: str, only_run: OnlyRun, history: History, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(imports=imports, trainer=settings, absent=absent))
    done = subprocess.run([sys.executable, str(script), uri], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    run = only_run()
    assert list(history(run, contract.TRAIN_LOSS)) == list(range(steps))
    assert run.data.tags[contract.TAG_STATUS] == "complete"
    assert run.data.tags[contract.TAG_SEED] == "0"
    assert (contract.TAG_RANKS in run.data.tags) == (steps == 4)


WITHOUT_FRAMEWORKS = """
import sys
sys.modules.update(dict.fromkeys(("lightning", "pytorch_lightning", "transformers")))
for module in ("advisor_lightning", "advisor_transformers"):
    try:
        __import__(module)
    except ImportError as error:
        print(error)
"""


def test_a_missing_framework_is_said_in_one_line() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_FRAMEWORKS], capture_output=True, text=True, check=True)
    lightning, transformers = done.stdout.splitlines()
    assert lightning.startswith("advisor_lightning needs Lightning: pip install")
    assert transformers.startswith("advisor_transformers needs the Trainer: pip install")

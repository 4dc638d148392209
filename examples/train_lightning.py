"""A Lightning training with the tuning advisor's callback: a small network that learns to read handwritten digits.

    python examples/train_lightning.py --learning-rate 0.05 --momentum 0.95

Takes seconds on a CPU. The line that the advisor needs is marked with `# advisor`. The run is stored in `mlflow.db`, or in the
store that MLFLOW_TRACKING_URI names; after a handful of runs with different hyperparameters, run
`advisor analyze digits-lightning`.
"""

from __future__ import annotations

import argparse

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from advisor_lightning import TuningCallback


class Digits(pl.LightningModule):
    """A network of two layers that classifies digits. Its arguments are the run's hyperparameters."""

    def __init__(self, params: dict[str, float]) -> None:
        super().__init__()
        self.save_hyperparameters(params)
        width = int(params["width"])
        self.network = nn.Sequential(nn.Linear(64, width), nn.LayerNorm(width), nn.ReLU(), nn.Linear(width, 10))

    def training_step(self, batch: list[torch.Tensor], _index: int) -> torch.Tensor:
        """Return the loss of a batch."""
        images, labels = batch
        logits = self.network(images)
        self.log("train/error", (logits.argmax(1) != labels).float().mean(), on_step=False, on_epoch=True)
        return nn.functional.cross_entropy(logits, labels)

    def validation_step(self, batch: list[torch.Tensor], _index: int) -> None:
        """Log error rate and loss."""
        images, labels = batch
        logits = self.network(images)
        self.log("val/error", (logits.argmax(1) != labels).float().mean())
        self.log("val/loss", nn.functional.cross_entropy(logits, labels))

    def configure_optimizers(self) -> dict[str, object]:
        """Return SGD with momentum and a cosine schedule over the whole training."""
        chosen = self.hparams
        optimizer = torch.optim.SGD(
            self.parameters(), chosen["learning_rate"], chosen["momentum"], weight_decay=chosen["weight_decay"]
        )
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, int(self.trainer.estimated_stepping_batches))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def parse_arguments() -> argparse.Namespace:
    """Return the hyperparameters that a study may vary, and fixed settings."""
    parser = argparse.ArgumentParser(description="Train a small network on handwritten digits.")
    parser.add_argument("--learning-rate", type=float, default=0.05)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--weight-decay", type=float, default=1e-4)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--width", type=int, default=64, help="units of the hidden layer")
    parser.add_argument("--max-train-steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def load() -> tuple[TensorDataset, TensorDataset]:
    """Return 1,347 training and 450 validation images; the split does not depend on the seed."""
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    x = torch.tensor(images, dtype=torch.float32)[order] / 16
    y = torch.tensor(labels)[order]
    return TensorDataset(x[:1347], y[:1347]), TensorDataset(x[1347:], y[1347:])


def main() -> None:
    """Train one trial."""
    args = parse_arguments()
    torch.set_num_threads(1)  # more threads do not speed up such a small network
    pl.seed_everything(args.seed)
    train, valid = load()
    # Only what a study may vary. The seed is none of it: trials that differ only in the seed are repeats.
    names = ("learning_rate", "momentum", "weight_decay", "batch_size", "width")
    module = Digits({name: getattr(args, name) for name in names})
    tuning = TuningCallback("val/error", experiment="digits-lightning")  # advisor
    trainer = pl.Trainer(
        max_steps=args.max_train_steps,
        accelerator="cpu",
        callbacks=[tuning, ModelCheckpoint(monitor="val/error", save_top_k=2)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(
        module, DataLoader(train, batch_size=args.batch_size, shuffle=True, drop_last=True), DataLoader(valid, batch_size=450)
    )
    if tuning.recording is not None and tuning.recording.best is not None:
        best = tuning.recording.best
        print(f"lowest validation error {best.value:.4f} at step {best.step}")


if __name__ == "__main__":
    main()

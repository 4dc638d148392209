"""A Lightning training of two ranks, with the callback."""

from __future__ import annotations

import torch
from lightning.pytorch import LightningModule, Trainer
from script import expect, write_expected
from torch import nn

from advisor_lightning import TuningCallback


class Module(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)
        self.save_hyperparameters({"learning_rate": 0.05})

    def training_step(self, batch: list[torch.Tensor], _index: int) -> torch.Tensor:
        x, y = batch
        return (self.layer(x) - y).square().mean()

    def validation_step(self, batch: list[torch.Tensor], _index: int) -> None:
        x, y = batch
        self.log("val_error", (self.layer(x) - y).square().mean(), sync_dist=True)

    def on_before_optimizer_step(self, _optimizer: torch.optim.Optimizer) -> None:
        gradients = [p.grad for p in self.parameters() if p.grad is not None]
        expect("lightning", torch.stack([g.norm() for g in gradients]).norm().item())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05)


torch.manual_seed(0)
data = torch.utils.data.TensorDataset(torch.randn(64, 3), torch.randn(64, 1))
Trainer(
    accelerator="cpu",
    devices=2,
    strategy="ddp",
    max_epochs=2,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    callbacks=[TuningCallback("val_error", experiment="test", run_name="lightning")],
).fit(Module(), torch.utils.data.DataLoader(data, batch_size=8, shuffle=True), torch.utils.data.DataLoader(data, batch_size=8))
write_expected()

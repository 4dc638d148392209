"""A one-second training for `../compatibility.py`: a small network with the hook, once for each learning rate."""

from __future__ import annotations

import argparse

import torch
from torch import nn

from advisor_pytorch import TuningLogger

STEPS = 60


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--learning-rate", type=float, nargs="+", default=[0.003, 0.03, 0.3])
    parser.add_argument("--experiment", default="compatibility")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for learning_rate in options.learning_rate:
        train(learning_rate, options.experiment)


def train(learning_rate: float, experiment: str) -> None:
    torch.manual_seed(0)
    inputs = torch.randn(256, 8)
    targets = torch.sin(inputs.sum(1, keepdim=True))
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=0.9)
    with TuningLogger(
        model,
        optimizer,
        params={"learning_rate": learning_rate},
        objective="val/loss",
        direction="minimize",
        experiment=experiment,
        max_train_steps=STEPS,
        seed=0,
        checkpoints=1,
    ) as log:
        while log.steps < STEPS:
            loss = nn.functional.mse_loss(model(inputs[:192]), targets[:192])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            log.step(loss)
            if log.steps % 10 == 0:
                with torch.no_grad():
                    log.evaluate({"val/loss": nn.functional.mse_loss(model(inputs[192:]), targets[192:])})


if __name__ == "__main__":
    main()

"""An Accelerate training with the tuning advisor's hook: a small network that learns to read handwritten digits.

    accelerate launch --cpu examples/train_accelerate.py --learning-rate 0.05 --weight-decay 0.001

Takes seconds on a CPU; `python` instead of `accelerate launch` works, too. The lines that the advisor needs are marked with
`# advisor`. The run is stored in `mlflow.db`, or in the store that MLFLOW_TRACKING_URI names; after a handful of runs with
different hyperparameters, run `advisor analyze digits-accelerate`.
"""

from __future__ import annotations

import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from advisor_pytorch import TuningLogger


def parse_arguments() -> argparse.Namespace:
    """Return the hyperparameters that a study may vary, and fixed settings."""
    parser = argparse.ArgumentParser(description="Train a small network on handwritten digits.")
    parser.add_argument("--learning-rate", type=float, default=0.05)
    parser.add_argument("--weight-decay", type=float, default=1e-4)
    parser.add_argument("--max-train-steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def load() -> tuple[DataLoader[tuple[torch.Tensor, ...]], DataLoader[tuple[torch.Tensor, ...]]]:
    """Return loaders of 1,347 training and 450 validation images; the split does not depend on the seed."""
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    x = torch.tensor(images, dtype=torch.float32)[order] / 16
    y = torch.tensor(labels)[order]
    train, valid = TensorDataset(x[:1347], y[:1347]), TensorDataset(x[1347:], y[1347:])
    return DataLoader(train, batch_size=64, shuffle=True, drop_last=True), DataLoader(valid, batch_size=450)


@torch.no_grad()
def evaluate(accelerator: Accelerator, model: nn.Module, loader: DataLoader[tuple[torch.Tensor, ...]]) -> float:
    """Return the error rate over the examples of all processes."""
    model.eval()
    wrong = torch.cat([accelerator.gather_for_metrics(model(x).argmax(1) != y) for x, y in loader])
    model.train()
    return float(wrong.float().mean())


def main() -> None:
    """Train one trial."""
    args = parse_arguments()
    torch.set_num_threads(1)  # more threads do not speed up such a small network
    set_seed(args.seed)
    accelerator = Accelerator()
    model = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), args.learning_rate, momentum=0.9, weight_decay=args.weight_decay)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.max_train_steps)
    model, optimizer, schedule, *loaders = accelerator.prepare(model, optimizer, schedule, *load())
    train, valid = loaders

    with TuningLogger(  # advisor: what `prepare` returned
        model,
        optimizer,
        params={"learning_rate": args.learning_rate, "weight_decay": args.weight_decay},
        objective="val/error",
        experiment="digits-accelerate",
        max_train_steps=args.max_train_steps,
        seed=args.seed,
        valid_loader=valid,
    ) as log:
        while log.steps < args.max_train_steps:
            for x, y in log.batches(train):  # advisor
                loss = nn.functional.cross_entropy(model(x), y)
                accelerator.backward(loss)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
                log.step(loss)  # advisor: pass the tensor, without .item()
                if log.steps % 25 == 0 or log.steps == args.max_train_steps:
                    log.evaluate({"val/error": evaluate(accelerator, model, valid)})  # advisor
                if log.steps == args.max_train_steps:
                    break
    if accelerator.is_main_process and log.best is not None:
        print(f"lowest validation error {log.best.value:.4f} at step {log.best.step}")


if __name__ == "__main__":
    main()

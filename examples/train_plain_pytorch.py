"""A plain PyTorch training loop with the tuning advisor's hook: a small network that learns to read handwritten digits.

    python examples/train_plain_pytorch.py --learning-rate 0.05 --momentum 0.95

Takes seconds on a CPU. The lines that the advisor needs are marked with `# advisor`. The run is stored in `mlflow.db`, or in the
store that MLFLOW_TRACKING_URI names; after a handful of runs with different hyperparameters, run `advisor analyze digits`.
"""

from __future__ import annotations

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from advisor_pytorch import TuningLogger


def parse_arguments() -> argparse.Namespace:
    """Return the hyperparameters that a study may vary."""
    parser = argparse.ArgumentParser(description="Train a small network on handwritten digits.")
    parser.add_argument("--learning-rate", type=float, default=0.05)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--weight-decay", type=float, default=1e-4)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--width", type=int, default=64, help="units of each hidden layer")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--max-train-steps", type=int, default=600)
    parser.add_argument("--schedule", choices=("constant", "cosine"), default="cosine", help="of the learning rate")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def load() -> tuple[TensorDataset, TensorDataset]:
    """Return 1,347 training and 450 validation images; the split does not depend on the seed."""
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    x = torch.tensor(images, dtype=torch.float32)[order] / 16
    y = torch.tensor(labels)[order]
    return TensorDataset(x[:1347], y[:1347]), TensorDataset(x[1347:], y[1347:])


def build_model(width: int, dropout: float) -> nn.Module:
    """Return a network with two hidden layers and layer normalisation."""
    return nn.Sequential(
        nn.Linear(64, width),
        nn.LayerNorm(width),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(width, width),
        nn.LayerNorm(width),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(width, 10),
    )


@torch.no_grad()
def evaluate(model: nn.Module, data: TensorDataset) -> tuple[torch.Tensor, torch.Tensor]:
    """Return mean loss and error rate as tensors, so that nothing waits for the device."""
    model.eval()
    x, y = data.tensors
    logits = model(x)
    model.train()
    return nn.functional.cross_entropy(logits, y), (logits.argmax(1) != y).float().mean()


def main() -> None:
    """Train one trial."""
    args = parse_arguments()
    torch.set_num_threads(1)  # more threads do not speed up such a small network
    torch.manual_seed(args.seed)
    train, valid = load()
    loader = DataLoader(train, batch_size=args.batch_size, shuffle=True, drop_last=True)
    model = build_model(args.width, args.dropout)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=args.learning_rate, momentum=args.momentum, weight_decay=args.weight_decay
    )
    schedule = (
        torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.max_train_steps)
        if args.schedule == "cosine"
        else torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
    )

    # `params` holds only what a study may vary. The seed is none of it: trials that differ only in the seed are repeats.
    names = ("learning_rate", "momentum", "weight_decay", "batch_size", "width", "dropout")
    with TuningLogger(  # advisor
        model,
        optimizer,
        params={name: getattr(args, name) for name in names},
        objective="val/error",
        direction="minimize",
        experiment="digits",
        max_train_steps=args.max_train_steps,
        seed=args.seed,
    ) as log:
        while log.steps < args.max_train_steps:
            for x, y in log.batches(loader):  # advisor: measures the wait for data
                loss = nn.functional.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                schedule.step()
                log.step(loss)  # advisor: pass the tensor, without .item()
                if log.steps % 50 == 0 or log.steps == args.max_train_steps:
                    valid_loss, valid_error = evaluate(model, valid)
                    train_loss, train_error = evaluate(model, train)
                    log.evaluate(
                        {
                            "val/error": valid_error,
                            "val/loss": valid_loss,
                            "train/error": train_error,
                            "train/eval_loss": train_loss,
                        }
                    )
                if log.steps == args.max_train_steps:
                    break
    if log.best is None:
        print("no evaluation had a finite error")
    else:
        print(f"lowest validation error {log.best.value:.4f} at step {log.best.step}")


if __name__ == "__main__":
    main()

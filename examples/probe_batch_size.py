"""Measures the training throughput over batch sizes, on handwritten digits, to find the largest useful one.

    python examples/probe_batch_size.py --maximum 512

Takes seconds on a CPU. On a GPU, omit `maximum`: the sweep ends when memory is full. The sweep restores the model and the
optimizer, so it can precede a training. The study is stored in `mlflow.db`, or in the store that MLFLOW_TRACKING_URI names.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from sklearn.datasets import load_digits
from torch import nn

from advisor_pytorch.probes import batch_size_sweep


def main() -> None:
    """Run the sweep and print its result."""
    parser = argparse.ArgumentParser(description="Measure the training throughput by batch size.")
    parser.add_argument("--maximum", type=int, default=512, help="largest batch size")
    parser.add_argument("--seconds-per-size", type=float, default=2.0)
    args = parser.parse_args()
    torch.set_num_threads(1)  # more threads do not speed up such a small network
    torch.manual_seed(0)
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
    model = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def make_step(batch_size: int) -> Callable[[], torch.Tensor]:
        def step() -> torch.Tensor:
            chosen = torch.randint(len(x), (batch_size,))
            loss = nn.functional.cross_entropy(model(x[chosen]), y[chosen])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        return step

    print(
        batch_size_sweep(
            make_step,
            model,
            optimizer,
            start=8,
            maximum=args.maximum,
            seconds_per_size=args.seconds_per_size,
            experiment="digits batch-size probe",
        )
    )


if __name__ == "__main__":
    main()

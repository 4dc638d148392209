"""A small random training that `chaos.py` runs, with the hook or undisturbed (without it).

    python benchmarks/reliability/chaos_training.py 7 8 9                      undisturbed: without the hook and without pauses
    python benchmarks/reliability/chaos_training.py 7 --uri URI --disk D --tee T

It prints `training SEED`, `loss STEP VALUE`, `evaluation STEP VALUE` and `parameters STEP DIGEST`. Exit status
`NO_PLACE`: the disk refused the spool, so nothing was trained.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

NO_PLACE = 75
"""Exit status of a training that could not begin to record."""
EVALUATE_EVERY = 20


class Program:
    """A training whose model, optimizer, loop and end are determined by its seed."""

    def __init__(self, seed: int) -> None:
        chance = self.chance = random.Random(seed)
        torch.manual_seed(seed)
        layers: list[nn.Module] = [nn.Linear(8, 16), nn.ReLU()]
        layers += [nn.BatchNorm1d(16)] * (chance.random() < 0.3) + [nn.Dropout(0.2)] * (chance.random() < 0.5)
        self.model = nn.Sequential(*layers, nn.Linear(16, 1))
        self.kind = chance.choice(["sgd", "adam", "lbfgs", "two", "scaled"])
        self.rate = 10 ** chance.uniform(-3, -1)
        self.optimizers = self.make_optimizers()
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, enabled=self.kind == "scaled")
        self.micro_batches = 1 if self.kind == "lbfgs" else chance.choice([1, 1, 3])
        self.clip = chance.choice([None, 1.0])
        self.steps = chance.randrange(300, 700)
        self.new_optimizer_at = chance.choice([None, None, None, self.steps // 2])
        self.fails_at = chance.choice([None] * 5 + [self.steps - 30])
        self.checkpoints = chance.choice([0, 0, 2])
        data = TensorDataset(x := torch.randn(64, 8), x[:, :1] - x[:, 1:2])
        workers = chance.choice([0, 0, 0, 0, 1])
        self.loader = DataLoader(
            data, 8, shuffle=True, drop_last=True, num_workers=workers, persistent_workers=bool(workers)
        )
        self.test = torch.randn(32, 8)

    def make_optimizers(self) -> list[torch.optim.Optimizer]:
        """Return the optimizers; the first one's steps are counted."""
        every = list(self.model.parameters())
        if self.kind == "lbfgs":
            return [torch.optim.LBFGS(every, lr=self.rate, max_iter=2)]
        if self.kind == "two":
            return [torch.optim.Adam(every[:2], self.rate), torch.optim.SGD(every[2:], self.rate)]
        return [torch.optim.Adam(every, self.rate) if self.kind == "adam" else torch.optim.SGD(every, self.rate, 0.9)]

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the training loss of a batch."""
        return nn.functional.mse_loss(self.model(x), y)

    def step(self, batches: Any, log: Callable[[torch.Tensor], object]) -> list[torch.Tensor]:
        """Make an optimizer step and return the losses of its batches; log all losses except the last."""
        if self.kind == "lbfgs":
            x, y = next(batches)

            def closure() -> torch.Tensor:
                self.optimizers[0].zero_grad()
                loss = self.loss(x, y)
                loss.backward()  # type: ignore[no-untyped-call]
                return loss

            return [torch.as_tensor(self.optimizers[0].step(closure))]  # type: ignore[arg-type]  # as LBFGS declares it
        losses: list[torch.Tensor] = []
        for _ in range(self.micro_batches):
            for loss in losses[-1:]:
                log(loss)
            losses.append(self.loss(*next(batches)))
            self.scaler.scale(losses[-1] / self.micro_batches).backward()  # type: ignore[no-untyped-call]
        for optimizer in self.optimizers:
            if self.clip is not None:
                self.scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_((p for g in optimizer.param_groups for p in g["params"]), self.clip)
            self.scaler.step(optimizer)
        self.scaler.update()
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        return losses

    def evaluate(self) -> float:
        """Return the objective."""
        self.model.eval()
        with torch.no_grad():
            error = float((self.model(self.test)[:, 0] - self.test[:, 0] + self.test[:, 1]).abs().mean())
        self.model.train()
        return error

    def digest(self) -> str:
        """Return a digest of all bits of the parameters."""
        return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in self.model.parameters())).hexdigest()[:16]


def endless_batches(loader: Iterable[Any]) -> Iterable[Any]:
    """Yield batches of one epoch after another."""
    while True:
        yield from loader


def train(program: Program, log: Any, pause_s: float, report: Callable[..., None]) -> None:
    """Train the program to its end. Raises RuntimeError if the program ends with a failure."""
    loader = program.loader if log is None else log.batches(program.loader)
    batches = iter(endless_batches(loader))
    for step in range(program.steps):
        if step == program.new_optimizer_at:
            program.optimizers = program.make_optimizers()
        losses = program.step(batches, str if log is None else log.step)
        report("loss", step, sum(float(loss.detach()) for loss in losses) / len(losses))
        if log is not None:
            log.step(losses[-1])
        if step % EVALUATE_EVERY == EVALUATE_EVERY - 1:
            report("evaluation", step, error := program.evaluate())
            report("parameters", step, program.digest())
            if log is not None:
                log.evaluate({"val/error": error})
        if step == program.fails_at:
            raise RuntimeError("the training fails")
        time.sleep(pause_s)


def make_hook(program: Program, seed: int, args: argparse.Namespace) -> Any:
    """Return the hook on a program. Exits if the disk refuses the spool."""
    from fault_training import record

    from advisor_pytorch import TuningLogger

    try:
        log = TuningLogger(
            program.model,
            program.optimizers,
            params={"learning_rate": program.rate, "kind": program.kind},
            objective="val/error",
            max_train_steps=program.steps,
            checkpoints=program.checkpoints,
            checkpoint_dir=args.disk / "checkpoints",
            seed=seed,
            experiment="chaos",
            run_name=f"training {seed}",
            tracking_uri=args.uri,
            spool=args.disk / "spool",
            close_timeout_s=args.timeout_s,
        )
    except OSError as error:
        print(f"cannot begin: {error}", file=sys.stderr)
        sys.exit(NO_PLACE)
    assert log._recorder is not None
    record(log._recorder, args.tee)
    return log


def run(seed: int, args: argparse.Namespace) -> None:
    """Make one training."""
    print("training", seed, 0, flush=True)
    program = Program(seed)
    log = make_hook(program, seed, args) if args.uri else None
    error: BaseException | None = None
    try:
        train(program, log, args.seconds / program.steps, lambda *words: print(*words, flush=True))
    except RuntimeError as failure:
        error = failure
    print("parameters", -1, program.digest(), flush=True)
    if log is not None:
        log.close(error=error)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seeds", type=int, nargs="+")
    parser.add_argument("--uri")
    parser.add_argument("--disk", type=Path, help="folder of the spool and the checkpoints")
    parser.add_argument("--tee", type=Path, help="file for every frame that the spool has accepted")
    parser.add_argument("--seconds", type=float, default=0.0, help="duration of the training, nearly all of it pauses")
    parser.add_argument("--timeout-s", type=float, default=10.0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    for seed in args.seeds:
        run(seed, args)


if __name__ == "__main__":
    main()

"""The loggers to compare (our hook and others), used in the same training loop and with stores of the same kind."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, cast

import torch
from models import Training

from advisor_pytorch import TuningLogger
from advisor_pytorch.logger import _open_loggers
from advisor_pytorch.steps.gradients import gradient_norm

Step = Callable[[], object]
"""Function that trains and logs one step."""


class Contestant:
    """A logger to compare: `step` trains and logs one step, and `settle` waits for background work."""

    def __init__(self, name: str, step: Step, *, settle: Step = lambda: None, steps: int | None = None) -> None:
        self.name, self.step, self.settle = name, step, settle
        self.steps = steps
        """Maximum number of steps in a block, which is smaller for slow loggers."""
        self.hooks: tuple[Any, Any] = (OrderedDict(), OrderedDict())
        """The optimizer's hooks before and after a step, which are installed while it is this logger's turn."""

    def enter(self, optimizer: torch.optim.Optimizer) -> None:
        before, after = self.hooks
        optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks = before, after


@contextlib.contextmanager
def contestants(training: Training, others: bool) -> Iterator[list[Contestant]]:
    """Yield all loggers to compare; the first one is the bare training without a logger. others: whether to include loggers other
    than ours."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        parameters = list(training.model.parameters())
        bare = Contestant("bare", training.step)
        norm = Contestant("the gradient norm by itself", lambda: training.step(lambda: gradient_norm(parameters)))
        listed = [bare, norm]
        for name, takes_norm in (("our hook without the norm", False), ("our hook", True)):
            listed.append(stack.enter_context(_our_hook_contestant(name, training, folder, takes_norm=takes_norm)))
        listed.append(stack.enter_context(_our_hook_contestant('our hook, guard="stop"', training, folder, guard="stop")))
        if others:
            for other in (_mlflow_async_contestant, _lightning_contestant, _transformers_contestant):
                try:
                    listed.append(stack.enter_context(other(training, folder)))
                except ImportError as missing:
                    print(f"{other.__name__[1:]}: not measured, {missing}")
        yield listed


@contextlib.contextmanager
def _our_hook_contestant(
    name: str, training: Training, folder: Path, *, takes_norm: bool = True, guard: Literal["stop"] | None = None
) -> Iterator[Contestant]:
    """Yield our hook. With a guard, the guard's process runs all the time, even while it is the turn of other loggers."""
    optimizer = cast(Any, training.optimizer)
    hooks = optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks
    contestant = Contestant(name, lambda: None)
    contestant.enter(optimizer)
    with TuningLogger(
        training.model,
        optimizer,
        params={"learning_rate": 1e-4},
        objective="val/loss",
        batch_size=64,
        experiment="overhead",
        tracking_uri=f"sqlite:///{folder / 'ours.db'}",
        spool=folder,
        close_timeout_s=300.0,
        guard=guard,
    ) as log:
        _open_loggers.discard(log)  # otherwise, the next logger on this model would close this one
        if not takes_norm:
            log._capture._norms._measure = None
        batches = iter(log.batches(_endless_batches()))

        def step() -> None:
            next(batches)
            log.step(training.step())
            if log.should_stop:
                raise RuntimeError("the guard stopped the benchmark")

        contestant.step = step
        begun = time.monotonic()  # wait for the shipper's start, which is a cost per run and not per step
        while (log.run_id is None or (guard and log.verdict is None)) and time.monotonic() - begun < 120:
            step()
            if guard:
                log.evaluate({"val/loss": 1.0})  # the guard's process starts with the first evaluation
            time.sleep(0.1)
        optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks = hooks
        yield contestant
        contestant.enter(optimizer)


def _endless_batches() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    batch = torch.zeros(64, 1), torch.zeros(64)
    while True:
        yield batch


def _three_metrics(training: Training) -> dict[str, float]:
    """Train one step and return the metrics that users typically log; reading them with `item` waits for the device."""
    loss = training.step().item()
    return {"train/loss": loss, "train/learning_rate": training.optimizer.param_groups[0]["lr"], "train/epoch": 0.0}


@contextlib.contextmanager
def _mlflow_async_contestant(training: Training, folder: Path) -> Iterator[Contestant]:
    import mlflow

    steps = iter(range(1 << 60))
    with _active_run(folder):
        yield Contestant(
            "MLflow's asynchronous logging",
            lambda: mlflow.log_metrics(_three_metrics(training), step=next(steps), synchronous=False),
            settle=mlflow.flush_async_logging,
            steps=20,
        )


@contextlib.contextmanager
def _active_run(folder: Path) -> Iterator[None]:
    """Start an active MLflow run, or share the existing one: a process has only one tracking URI and one active run."""
    import mlflow

    if mlflow.active_run() is not None:
        yield
        return
    mlflow.set_tracking_uri(f"sqlite:///{folder / 'mlflow.db'}")
    with mlflow.start_run():
        yield
        mlflow.flush_async_logging()


@contextlib.contextmanager
def _lightning_contestant(training: Training, folder: Path) -> Iterator[Contestant]:
    from lightning.pytorch.loggers import MLFlowLogger

    logger = MLFlowLogger("overhead", tracking_uri=f"sqlite:///{folder / 'mlflow.db'}")
    steps = iter(range(1 << 60))
    yield Contestant("Lightning's MLFlowLogger", lambda: logger.log_metrics(_three_metrics(training), next(steps)), steps=20)
    logger.finalize("success")


@contextlib.contextmanager
def _transformers_contestant(training: Training, folder: Path) -> Iterator[Contestant]:
    import mlflow
    from transformers import TrainerControl, TrainerState, TrainingArguments
    from transformers.integrations.integration_utils import MLflowCallback

    callback = cast(Any, MLflowCallback)()
    args, control = TrainingArguments(str(folder / "out"), report_to="none"), TrainerControl()
    state = TrainerState(is_world_process_zero=True)

    def step() -> None:
        state.global_step += 1
        callback.on_log(args, state, control, _three_metrics(training))

    with _active_run(folder):
        callback.setup(args, state, SimpleNamespace())
        yield Contestant("Transformers' MLflowCallback", step, settle=mlflow.flush_async_logging, steps=20)

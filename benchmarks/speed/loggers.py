"""What logs a training's steps, ours and others', in the same loop and into stores of the same kind."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch
from models import Training

from advisor_pytorch import TuningLogger
from advisor_pytorch.steps.gradients import norm_of

Step = Callable[[], object]
"""One step of the training, with what logs it."""


class Contestant:
    """A way to log: `step` trains and logs one step, `settle` lets what it left to the background be done."""

    def __init__(self, name: str, step: Step, *, settle: Step = lambda: None, steps: int | None = None) -> None:
        self.name, self.step, self.settle = name, step, settle
        self.steps = steps
        """Steps in a block, where that must be few."""
        self.hooks: tuple[Any, Any] = (OrderedDict(), OrderedDict())
        """The optimizer's, before and after a step, while this one's turn is."""

    def enter(self, optimizer: torch.optim.Optimizer) -> None:
        before, after = self.hooks
        optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks = before, after


@contextlib.contextmanager
def contestants(training: Training, others: bool) -> Iterator[list[Contestant]]:
    """Everyone, bare first; `others` says whether to include loggers that are not ours."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        parameters = list(training.model.parameters())
        bare = Contestant("bare", training.step)
        norm = Contestant("the gradient norm by itself", lambda: training.step(lambda: norm_of(parameters)))
        found = [bare, norm]
        for name, takes_norm in (("our hook but for the norm", False), ("our hook", True)):
            found.append(stack.enter_context(_our_hook(name, training, folder, takes_norm)))
        if others:
            for other in (_mlflow_async, _lightning, _transformers):
                try:
                    found.append(stack.enter_context(other(training, folder)))
                except ImportError as missing:
                    print(f"{other.__name__[1:]}: not measured, {missing}")
        yield found


@contextlib.contextmanager
def _our_hook(name: str, training: Training, folder: Path, takes_norm: bool) -> Iterator[Contestant]:
    optimizer = cast(Any, training.optimizer)
    hooks = optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks
    found = Contestant(name, lambda: None)
    found.enter(optimizer)
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
    ) as log:
        if not takes_norm:
            log._capture._norms._measure = None
        batches = iter(log.batches(_endless()))

        def step() -> None:
            next(batches)
            log.step(training.step())

        found.step = step
        begun = time.monotonic()  # the store's process starts up meanwhile: a cost of a run, not of a step
        while log.run_id is None and time.monotonic() - begun < 120:
            step()
            time.sleep(0.1)
        optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks = hooks
        yield found
        found.enter(optimizer)


def _endless() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    batch = torch.zeros(64, 1), torch.zeros(64)
    while True:
        yield batch


def _three_metrics(training: Training) -> dict[str, float]:
    """As people log them: the loss as a number, which waits for the device."""
    loss = training.step().item()
    return {"train/loss": loss, "train/learning_rate": training.optimizer.param_groups[0]["lr"], "train/epoch": 0.0}


@contextlib.contextmanager
def _mlflow_async(training: Training, folder: Path) -> Iterator[Contestant]:
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
    """MLflow's one active run, which who comes second shares. One store for all three, since it is one address for a process."""
    import mlflow

    if mlflow.active_run() is not None:
        yield
        return
    mlflow.set_tracking_uri(f"sqlite:///{folder / 'mlflow.db'}")
    with mlflow.start_run():
        yield
        mlflow.flush_async_logging()


@contextlib.contextmanager
def _lightning(training: Training, folder: Path) -> Iterator[Contestant]:
    from lightning.pytorch.loggers import MLFlowLogger

    logger = MLFlowLogger("overhead", tracking_uri=f"sqlite:///{folder / 'mlflow.db'}")
    steps = iter(range(1 << 60))
    yield Contestant(
        "Lightning's MLFlowLogger", lambda: logger.log_metrics(_three_metrics(training), next(steps)), steps=20
    )
    logger.finalize("success")


@contextlib.contextmanager
def _transformers(training: Training, folder: Path) -> Iterator[Contestant]:
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

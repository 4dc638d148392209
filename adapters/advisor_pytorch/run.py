"""Manages the MLflow run of a training: logs the training's rows, facts, tags and warnings, and ends the run with a status."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from advisor import contract
from advisor.contract.guard_file import GuardVerdict
from advisor_logging.checkpoints import RunInfo
from advisor_logging.limits import clean_name, clean_text
from advisor_logging.recorder import Recorder
from advisor_logging.run_description import NEW_RUN_ID, RunSettings
from advisor_logging.table import MetricTable
from advisor_pytorch.autopsy.record import AutopsyFile
from advisor_pytorch.autopsy.watch import Autopsy, AutopsyMode
from advisor_pytorch.checkpoints import CheckpointKeeper, CheckpointSettings, EarlierRun, TrainingState
from advisor_pytorch.distributed.rank_facts import loader_facts
from advisor_pytorch.distributed.ranks import Ranks
from advisor_pytorch.facts.observations import Observations
from advisor_pytorch.outcome import ExitStatus, RunOutcome, exit_status_from_exception, guard_stop_tags
from advisor_pytorch.steps.capture import StepCapture
from advisor_pytorch.steps.device import ScalarValue
from advisor_pytorch.steps.gradients import choose_norm_measure
from advisor_pytorch.steps.rows import PendingChunk
from advisor_pytorch.validation import RefusedValues

MAX_DRAIN_WAIT_S = 10.0
"""Maximum seconds to wait at the end of a run until the last values are on disk."""


class TrainingRun:
    """The data of one rank in a run: rank 0 passes them to the recorder, other ranks to rank 0.

    `_on_rows` runs in the writer thread, all other methods in the training thread.
    """

    def __init__(self, model: torch.nn.Module, state: TrainingState, outcome: RunOutcome, max_train_steps: int | None) -> None:
        self._model, self._state, self._max_train_steps = model, state, max_train_steps
        self.outcome = outcome
        self.ranks = Ranks(model, self._log_tags, self.warn)
        self.refusals = RefusedValues(self.warn)
        self.recorder: Recorder | None = None
        """Writes the run on rank 0; None on other ranks."""
        self.observations: Observations | None = None
        self.autopsy: Autopsy | None = None
        self._autopsy_file: AutopsyFile | None = None
        self._user_tags: set[str] = set()

    def open_run(
        self, settings: RunSettings, checkpoints: CheckpointSettings, earlier: EarlierRun | None, run_info: RunInfo
    ) -> None:
        """Open the run in the background on rank 0. earlier: the run to continue, if any. run_info: its description."""
        if self.ranks.is_rank_0:
            self.recorder = Recorder(settings, self._on_rows, self.ranks.receiver)
        identity = self.recorder.id if self.recorder else "other-rank"
        self.keeper = CheckpointKeeper(
            checkpoints, earlier, run_info, identity, self._state, is_rank_0=self.ranks.is_rank_0, warn=self.warn
        )
        run_id = None if settings.run_id == NEW_RUN_ID else settings.run_id
        self.keeper.update_run_info(run_id=run_id, spool=settings.continued_spool_id or identity)
        self.outcome.best = self.keeper.best

    def start_capture(
        self,
        optimizers: Sequence[torch.optim.Optimizer],
        trained: Sequence[torch.Tensor],
        start_step: int,
        batch_size: int | None,
        autopsy: AutopsyMode,
    ) -> None:
        """Start to capture steps and, on rank 0, to watch for the first non-finite value. trained: the parameters that the
        optimizers train."""
        if autopsy is not False and self.recorder is not None:
            run_facts = {"max_train_steps": self._max_train_steps, "ranks": self.ranks.world_size}
            self._autopsy_file = AutopsyFile(self.recorder, lambda: self.capture.flush(), run_facts)  # noqa: PLW0108 - created later
            write, keeps = self._autopsy_file.write, autopsy == "batch"
            self.autopsy = Autopsy(self._model, optimizers, write, self.warn, keeps_batches=keeps, start_step=start_step)
        measure, is_partial = choose_norm_measure(trained, self.ranks.world_size, self.warn)
        self.capture = StepCapture(
            optimizers, self, start_step, batch_size, measure=measure, is_partial=is_partial, watch=self.autopsy
        )

    def describe(
        self,
        optimizers: Sequence[torch.optim.Optimizer],
        tags: Mapping[str, str],
        params: Mapping[str, Any],
        *,
        scheduler: Any,
        classes: int | None,
        valid_loader: Iterable[Any] | None,
    ) -> None:
        if self.recorder is None:
            return
        self.observations = Observations(self._model, optimizers, self._log_observed_tags, self.warn, self._max_train_steps)
        self.recorder.sampler = self.observations.sample
        self.recorder.note(tags=tags, params=params)
        self.observations.describe_setup(scheduler, classes)
        self.observations.loaders(valid=valid_loader)

    def loaders(self, train: Iterable[Any] | None, valid: Iterable[Any] | None) -> None:
        if train is not None:
            self.ranks.send(loader_facts(train))
        if self.observations is not None:
            self.observations.loaders(train, valid)

    def protect_user_tags(self, tags: Iterable[str]) -> None:
        """Observed values no longer replace the user's values of these tags."""
        self._user_tags.update(tags)

    def note(self, facts: Mapping[str, object]) -> None:
        if self.recorder is None:
            return
        texts = {clean_name(name): clean_text(value) for name, value in facts.items()}
        self.protect_user_tags(texts)
        self.ranks.override_tags(texts)
        self.recorder.note(tags=texts)

    def submit_chunk(self, chunk: PendingChunk) -> None:
        (self.recorder or self.ranks).put(chunk)

    def on_observed_tag(self, tag: str, value: str) -> None:
        if tag == contract.TAG_BATCH_SIZE and self.ranks.send({"batch_size": int(value)}):
            return  # rank 0 logs the sum of this value over all ranks instead
        if self.observations is not None:
            self.observations.on_observed_tag(tag, value)
        self._log_observed_tags({tag: value})

    def on_optimizer_replaced(self, k: int, optimizer: torch.optim.Optimizer) -> None:
        self._state.replace_optimizer(k, optimizer)
        if self.observations is not None:
            self.observations.on_optimizer_replaced(k, optimizer)
        name = type(optimizer).__name__
        self.warn(
            "replaced",
            f"a new optimizer, {name}, trains the model: its steps are logged from now on, except for the first gradient norm; "
            "the run's tags describe the first optimizer",
        )

    def warn(self, key: str, message: str) -> None:
        (self.recorder or self.ranks).warn(key, message)

    def save_checkpoint(self, step: int, value: ScalarValue | None) -> None:
        """Save a checkpoint after an evaluation at the last completed step. value: the objective; None if it could not be read."""
        steps_made = self.capture.next_step
        if step != max(steps_made - 1, 0):
            self.warn("earlier step", f"no checkpoint is kept of step {step}: the last one made is {max(steps_made - 1, 0)}")
            return
        self.keeper.update_run_info(run_id=self.recorder.run_id if self.recorder is not None else None)
        if self.keeper.on_evaluation(step, steps_made, value):
            self._log_tags({contract.TAG_CHECKPOINTS: self.keeper.checkpoints.describe()})

    def close(self, status: str | None, error: BaseException | None, stopped_by: GuardVerdict | None, timeout_s: float) -> None:
        """stopped_by: the guard's verdict that asked to stop the training."""
        if missing := self.capture.describe_unmatched_losses():
            self.warn("missing", missing)
        refused_points = self.refusals.warn_about_total(self.capture.failures)
        if (recorder := self.recorder) is None:
            self.ranks.close()
            return
        recorder.add_lost_points(refused_points + self.capture.losses_without_step)
        capture, keeper = self.capture, self.keeper
        recorder.drain(MAX_DRAIN_WAIT_S)  # write the last values first, because they determine the run's final status
        if self.autopsy is not None:
            self.autopsy.stop()
        steps, last_step = capture.next_step + capture.skipped, max(capture.next_step - 1, 0)
        status_of_training = self.outcome.final_status(steps, self._max_train_steps)
        error_status = exit_status_from_exception(error)
        exit_status = error_status or ExitStatus(status_of_training, "FINISHED")
        if not error_status and missing and status_of_training == "complete":
            exit_status = ExitStatus("stopped", "FINISHED", missing)
        guard_tags = {}
        if stopped_by and not (status or error_status or (self._max_train_steps and steps >= self._max_train_steps)):
            guard_tags = guard_stop_tags(stopped_by, last_step)
        status = status or guard_tags.get(contract.TAG_STATUS) or exit_status.status
        if error is None and status != "diverged":
            keeper.on_end(last_step, capture.next_step)
        keeper.update_run_info(run_id=recorder.run_id, status=status)
        tags = {**self._final_tags(), contract.TAG_STATUS: status, **guard_tags, **self.ranks.tags()}
        if exit_status.message:
            tags[contract.TAG_ERROR] = exit_status.message
        recorder.close(exit_status.mlflow_status, tags, timeout_s)
        keeper.update_run_info(run_id=recorder.run_id)  # the MLflow id of a short run becomes known only at the end of the run

    def _final_tags(self) -> dict[str, str]:
        observed_tags = {} if self.observations is None else self.observations.tags()
        observed_tags[contract.TAG_CHECKPOINTS] = self.keeper.checkpoints.describe()
        tags = {tag: value for tag, value in observed_tags.items() if tag not in self._user_tags}
        if self.capture.skipped:
            tags[contract.TAG_SKIPPED_STEPS] = str(self.capture.skipped)
        return tags

    def _on_rows(self, table: MetricTable) -> None:
        if self.observations is not None:
            self.observations.on_rows(table)
        self.outcome.add_rows(table)
        if self.autopsy is not None and self._autopsy_file is not None:
            self.autopsy.late_non_finite_step = self._autopsy_file.add_rows(table)

    def _log_observed_tags(self, tags: Mapping[str, str]) -> None:
        self._log_tags({tag: value for tag, value in tags.items() if tag not in self._user_tags})

    def _log_tags(self, tags: Mapping[str, str]) -> None:
        if self.recorder is not None:
            self.recorder.note(tags=tags)

"""Receives the verdicts of the process `advisor guard` on a run, and decides whether the training should stop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from advisor.contract.guard_file import GuardVerdict
from advisor_logging.guard_process import GuardController
from advisor_logging.recorder import Recorder
from advisor_pytorch.distributed.rank_facts import current_world_size

GuardMode = Literal["warn", "stop"]


class GuardListener:
    """Keeps the guard's latest verdict on a run, and whether this verdict requires the training to stop."""

    def __init__(self, mode: GuardMode | None, warn: Callable[[str, str], None]) -> None:
        """warn: function that logs a one-line warning, once per key."""
        self._mode, self._warn = mode, warn
        self.verdict: GuardVerdict | None = None
        self.should_stop = False

    def start(self, recorder: Recorder, is_evaluated: Callable[[], bool]) -> None:
        if self._mode is not None:
            self._may_stop()  # in a training with several ranks, this logs a warning immediately
            recorder.guard = GuardController(is_evaluated, self.on_verdict, self._warn)

    def on_verdict(self, verdict: GuardVerdict) -> None:
        """The writer thread calls this method."""
        if self.should_stop:
            return  # keep the verdict that stopped the training, because its reason is recorded at the end of the run
        self.verdict = verdict
        stop = verdict["stop"] and self._may_stop()
        if verdict["state"] not in ("fine", "unknown"):
            self._warn(f"guard {verdict['state']}", verdict["message"] + " The training should stop." * stop)
        self.should_stop = stop

    def _may_stop(self) -> bool:
        """With several ranks, the other ranks would hang if one stopped alone."""
        if self._mode == "stop" and current_world_size() > 1:
            self._warn(
                "guard ranks", "with several ranks, guard='stop' only warns: all ranks would have to stop at the same step"
            )
            return False
        return self._mode == "stop"

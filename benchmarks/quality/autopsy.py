"""Measures how often an autopsy names the right culprit: 21 faults in small real trainings, 10 seeds each.

    python benchmarks/quality/autopsy.py                     # seeds 100 to 109
    python benchmarks/quality/autopsy.py --seeds 0:5 --show  # the seeds that the checks were developed on; print wrong verdicts
    python benchmarks/quality/autopsy.py --device cuda

"At once": values are known at the step, as on a CPU or in a replay. "Late": loss and gradient norm become known 40 steps later, as
on a GPU; measured with and without `autopsy="batch"`. With `--device cuda`, the trainings run on the GPU, and the delay of the late
modes is the hook's real delay.

A verdict is right if it names the true cause and the faulty tensor, layer or operation. If the fault of a training causes no
non-finite value, another training is drawn instead. A healthy training, without a fault, must produce no autopsy record.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from autopsy_faults import FAULTS
from autopsy_training import Training

from advisor.computed.stability.autopsy import diagnose
from advisor.model.autopsy import AutopsyRecord, read_autopsy_record
from advisor_pytorch.autopsy.record import MetricHistory, autopsy_json
from advisor_pytorch.autopsy.watch import Autopsy, SeenBatch
from advisor_pytorch.steps.capture import StepCapture
from advisor_pytorch.steps.gradients import PerParameterGradientNorm
from advisor_pytorch.steps.rows import PendingChunk

LAG = 40
"""Number of steps after which loss and gradient norm become known in the late modes."""
MAX_DRAWS = 20
"""Maximum number of attempts to draw a training whose fault causes a non-finite value."""
MODES = {"at once": (True, False), "late": (False, False), "late, with the batch": (False, True)}


class Observer:
    """Takes the logger's place in the benchmark: it keeps the rows and the autopsy record in memory and needs no store."""

    def __init__(self) -> None:
        self.history, self.record = MetricHistory(), ""

    def submit_chunk(self, chunk: PendingChunk) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        for table in chunk.tables():
            self.history.add_rows(table)

    def on_observed_tag(self, tag: str, value: str) -> None:
        pass

    def on_optimizer_replaced(self, k: int, optimizer: torch.optim.Optimizer) -> None:
        pass

    def warn(self, key: str, message: str) -> None:
        print(f"warning {key}: {message}")

    def write(self, facts: Mapping[str, Any], _batches: Sequence[SeenBatch]) -> None:
        self.capture.flush()
        self.record = autopsy_json({**facts, "ranks": 1, "max_train_steps": 1000, "history": self.history.facts()})

    def train(self, training: Training, *, at_once: bool, keeps_batches: bool) -> AutopsyRecord | None:
        """Train for some steps; return the autopsy record, if one was written."""
        optimizers = [training.optimizer]
        watch = Autopsy(training.model, optimizers, self.write, self.warn, keeps_batches=keeps_batches)
        on_cpu = next(training.model.parameters()).is_cpu
        watch.read_mode = "all" if at_once else "none" if on_cpu else "cpu"
        self.capture = StepCapture(optimizers, self, measure=PerParameterGradientNorm(), watch=watch)
        for i in range(training.steps):
            watch.on_batch(batch := training.batch(i))
            self.capture.add_loss(training.step(i, batch))
            if i % LAG == LAG - 1:
                self.capture.flush()
                watch.late_non_finite_step = self.history.first_bad_step
        self.capture.stop()
        watch.late_non_finite_step = self.history.first_bad_step
        watch.stop()
        return read_autopsy_record(self.record) if self.record else None


def verdict(name: str, seed: int, mode: str, show: bool) -> str:
    """Return how the autopsy's verdict compares with the true fault: right, wrong, open or silent."""
    at_once, keeps_batches = MODES[mode]
    for again in range(MAX_DRAWS):
        training = FAULTS[name](seed + 1000 * again)
        if (record := Observer().train(training, at_once=at_once, keeps_batches=keeps_batches)) is not None:
            break
    else:
        return "silent"
    found = diagnose(record)
    right = found.cause == training.cause and training.names in found.explanation
    if show and not right:
        print(f"{name}, seed {seed}, {mode}, step {record.step}: {found.cause}: {found.explanation}")
    return "right" if right else "open" if found.certainty == "open" else "wrong"


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure how often an autopsy names the culprit.")
    parser.add_argument("--seeds", default="100:110")
    parser.add_argument("--fault", action="append", choices=list(FAULTS))
    parser.add_argument("--mode", action="append", choices=list(MODES))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--show", action="store_true")
    options = parser.parse_args()
    first, last = map(int, options.seeds.split(":"))
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    torch.set_default_device(options.device)
    modes = options.mode or list(MODES)
    print(f"| fault | {' | '.join(modes)} |\n|---|{'---|' * len(modes)}")
    totals = {mode: dict.fromkeys(("right", "open", "wrong", "silent"), 0) for mode in modes}
    for name in options.fault or FAULTS:
        cells = []
        for mode in modes:
            verdicts = [verdict(name, seed, mode, options.show) for seed in range(first, last)]
            for one in verdicts:
                totals[mode][one] += 1
            others = [f"{verdicts.count(v)} {v}" for v in ("open", "wrong", "silent") if v in verdicts]
            cells.append(", ".join([f"{verdicts.count('right')}", *others]))
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    shares = [", ".join(f"{n} {v}" for v, n in totals[mode].items() if n) for mode in modes]
    print(f"| all | {' | '.join(shares)} |")
    healthy = [s for s in range(first, last) if Observer().train(Training(s), at_once=True, keeps_batches=False)]
    print(f"\nhealthy trainings with a record: {len(healthy)} of {last - first}")


if __name__ == "__main__":
    main()

"""A small training with the hook and a second record of all logged points, which `faults.py` and the fault tests run.

    python benchmarks/reliability/fault_training.py URI FOLDER --steps 2000

FOLDER/tee gets every frame once it is on disk in the spool; FOLDER/report.json gets the durations that the training measured.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import time
from pathlib import Path

import torch

from advisor_logging.recorder import Recorder
from advisor_pytorch import TuningLogger


def record(recorder: Recorder, path: Path) -> None:
    """Also write every frame that the recorder's spool accepts to the file `path`."""
    spool, file = recorder._spool, open(path, "ab", buffering=0)  # noqa: SIM115 - open until the training ends
    append = spool.append

    def tee(frames: bytes, *, critical: bool = False) -> None:
        append(frames, critical=critical)
        file.write(frames)

    spool.append = tee  # type: ignore[method-assign]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("uri")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--step-s", type=float, default=0.003, help="minimum duration of a step")
    parser.add_argument("--timeout-s", type=float, default=60.0)
    args = parser.parse_args()
    logging.basicConfig(filename=args.folder / "training.log", level=logging.WARNING)
    torch.set_num_threads(1)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    log = TuningLogger(
        model,
        optimizer,
        params={"learning_rate": 0.01},
        objective="val/error",
        max_train_steps=args.steps,
        experiment="faults",
        tracking_uri=args.uri,
        spool=args.folder / "spool",
        close_timeout_s=args.timeout_s,
    )
    assert log._recorder is not None
    record(log._recorder, args.folder / "tee")
    print("process", log._recorder._shipper._process.pid if log._recorder._shipper else 0, flush=True)
    x, seconds = torch.randn(16, 8), []
    for step in range(args.steps):
        begun = time.perf_counter()
        loss = (model(x) ** 2).mean() * (float("nan") if step % 97 == 96 else 1.0)
        if step % 97 != 96:
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        log.step(loss)
        if step % 50 == 49:
            log.evaluate({"val/error": loss})
        seconds.append(time.perf_counter() - begun)
        time.sleep(max(0.0, args.step_s - seconds[-1]))
        print("step", step, flush=True)
    ended = time.monotonic()
    log.close()
    report = {
        "steps": args.steps,
        "step_us": statistics.median(seconds) * 1e6,
        "slowest_ms": max(seconds) * 1e3,
        "close_s": time.monotonic() - ended,
    }
    (args.folder / "report.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main()

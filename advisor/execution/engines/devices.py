"""Divides the GPUs and CPU threads of this machine into slots. Each slot runs one trial at a time."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence

from advisor.model.errors import AdvisorError
from advisor.system.processes import usable_cpus


def find_gpus() -> tuple[str, ...]:
    """Return the GPUs in CUDA_VISIBLE_DEVICES; if this variable is not set, return all GPUs that nvidia-smi lists."""
    visible_gpus = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible_gpus is not None:
        return tuple(word.strip() for word in visible_gpus.split(",") if word.strip() and word.strip() != "-1")
    nvidia_smi = shutil.which("nvidia-smi")
    if nvidia_smi is None:
        return ()
    words = [nvidia_smi, "--query-gpu=index", "--format=csv,noheader"]
    try:
        query = subprocess.run(words, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(line.strip() for line in query.stdout.splitlines() if line.strip())


def make_slots(gpus: Sequence[str], per_trial: int | None, parallel: int | None) -> list[dict[str, str]]:
    """Return the environment variables of each slot, which runs one trial at a time.

    per_trial: GPUs per trial; None for one if the machine has any. parallel: number of slots; None for as many as the GPUs
    allow, or one without GPUs. All slots get the same number of CPU threads, unless OMP_NUM_THREADS is set.
    """
    if per_trial and not gpus:
        raise AdvisorError(
            f"each trial needs {per_trial} GPUs, but this machine has none; omit --gpus-per-trial, or name GPUs in "
            "CUDA_VISIBLE_DEVICES"
        )
    per_trial = 1 if per_trial is None else per_trial
    group_starts = range(0, len(gpus) - per_trial + 1, per_trial) if per_trial else ()
    groups = [",".join(gpus[i : i + per_trial]) for i in group_starts]
    if gpus and per_trial and not groups:
        raise AdvisorError(f"each trial needs {per_trial} GPUs, but {len(gpus)} exist; lower --gpus-per-trial")
    count = parallel if parallel is not None else max(len(groups), 1)
    if groups and count > len(groups):
        raise AdvisorError(
            f"{count} trials at a time with {per_trial} GPUs each need {count * per_trial} GPUs, but {len(gpus)} exist; "
            "lower --parallel, or pass --gpus-per-trial 0 to let trials share GPUs"
        )
    shares_cpus = count > 1 and "OMP_NUM_THREADS" not in os.environ
    thread_variables = {"OMP_NUM_THREADS": str(max(1, usable_cpus() // count))} if shares_cpus else {}
    return [{**thread_variables, **({"CUDA_VISIBLE_DEVICES": groups[i]} if groups else {})} for i in range(count)]

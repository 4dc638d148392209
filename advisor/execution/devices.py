"""Which GPUs trials are handed, and how many threads each gets on a CPU."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence

from advisor.model.errors import AdvisorError


def gpus() -> tuple[str, ...]:
    """The GPUs that may be used: those of CUDA_VISIBLE_DEVICES, else all that NVIDIA's tool lists; empty without any."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return tuple(word.strip() for word in visible.split(",") if word.strip() and word.strip() != "-1")
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ()
    try:
        asked = subprocess.run(
            [tool, "--query-gpu=index", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
        )
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(line.strip() for line in asked.stdout.splitlines() if line.strip())


def slots(devices: Sequence[str], per_trial: int | None, parallel: int | None) -> list[dict[str, str]]:
    """The environment of each place in which a trial can run at a time.

    devices: ids of GPUs; per_trial: how many a trial gets, None: one, where there are any; parallel: trials at a time, None: as
    many as there are GPUs for, or one.
    Trials that share a CPU share its threads as well, unless OMP_NUM_THREADS says otherwise.
    """
    if per_trial and not devices:
        raise AdvisorError(
            f"a trial is to get {per_trial} GPUs, and none were found here; leave out --gpus-per-trial, or name them in "
            "CUDA_VISIBLE_DEVICES"
        )
    per_trial = 1 if per_trial is None else per_trial
    groups = (
        [",".join(devices[i : i + per_trial]) for i in range(0, len(devices) - per_trial + 1, per_trial)]
        if per_trial
        else []
    )
    if devices and per_trial and not groups:
        raise AdvisorError(f"a trial is to get {per_trial} GPUs, and there are {len(devices)}; lower --gpus-per-trial")
    places = parallel if parallel is not None else max(len(groups), 1)
    if groups and places > len(groups):
        raise AdvisorError(
            f"{places} trials at a time with {per_trial} GPUs each need {places * per_trial}, and there are {len(devices)}; "
            "lower --parallel, or pass --gpus-per-trial 0 to let trials share them"
        )
    threads = _threads(places)
    return [{**threads, **({"CUDA_VISIBLE_DEVICES": groups[i]} if groups else {})} for i in range(places)]


def _threads(places: int) -> Mapping[str, str]:
    if places == 1 or "OMP_NUM_THREADS" in os.environ:
        return {}
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return {"OMP_NUM_THREADS": str(max(1, cores // places))}

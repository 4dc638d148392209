from __future__ import annotations

import sys
from typing import Any

import pytest

from advisor_pytorch.facts import run_tags


def test_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    config = tmp_path / "run.yaml"
    config.touch()
    monkeypatch.setattr(sys, "orig_argv", ["python", "train.py", f"--config={config}", "--api-key", "abc", "no.yaml"])
    assert run_tags.shell_command() == f"python train.py --config={config} --api-key '***' no.yaml"
    assert run_tags.config_files_in_arguments(sys.orig_argv) == [str(config)]
    for name, value in (("TORCHELASTIC_RUN_ID", "none"), ("GROUP_WORLD_SIZE", "2"), ("LOCAL_WORLD_SIZE", "8")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "orig_argv", ["/usr/bin/python3", "-u", "train.py", "--lr", "1"])
    assert run_tags.shell_command() == "torchrun --nnodes=2 --nproc-per-node=8 train.py --lr 1"
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "ipykernel_launcher", "-f", "kernel-1.json"])
    monkeypatch.setitem(sys.modules, "ipykernel", sys)
    monkeypatch.setenv("JPY_SESSION_NAME", "/notebooks/my study.ipynb")
    assert run_tags.shell_command() == "jupyter notebook '/notebooks/my study.ipynb'"


def test_the_command_of_a_process_of_multiprocessing_is_its_parents(monkeypatch: pytest.MonkeyPatch) -> None:
    handed = "from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=4, pipe_handle=6)"
    monkeypatch.setattr(sys, "orig_argv", ["/usr/bin/python", "-c", handed, "--multiprocessing-fork"])
    monkeypatch.setattr(sys, "argv", ["train.py", "--lr", "0.1", "--api-key", "s3cret"])
    monkeypatch.setattr(sys, "executable", "/usr/bin/python")
    assert run_tags.shell_command() == "/usr/bin/python train.py --lr 0.1 --api-key '***'"

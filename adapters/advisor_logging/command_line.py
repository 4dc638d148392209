"""Reads the command line of the training process, so that the run records the command that repeats the training."""

from __future__ import annotations

import os
import shlex
import sys

from advisor.contract.redact import redact_arguments


def shell_command() -> str:
    """Return the command line that started this process, quoted for a shell, without secrets. In a notebook, return the
    notebook's file name."""
    if "ipykernel" in sys.modules and any("ipykernel" in a or a.startswith("-f") for a in sys.orig_argv):
        notebook = os.environ.get("JPY_SESSION_NAME") or getattr(sys.modules.get("__main__"), "__vsc_ipynb_file__", None)
        return f"jupyter notebook {shlex.quote(str(notebook))}" if notebook else "jupyter notebook"
    # The command line of a multiprocessing child is useless, but its `sys.argv` holds the parent's arguments.
    if any(a.startswith("from multiprocessing.") for a in sys.orig_argv):
        return shlex.join(redact_arguments([sys.executable, *getattr(sys, "argv", ())]))
    arguments = redact_arguments(sys.orig_argv)
    if "TORCHELASTIC_RUN_ID" in os.environ:  # torchrun sets this environment variable
        size = {"nnodes": "GROUP_WORLD_SIZE", "nproc-per-node": "LOCAL_WORLD_SIZE"}
        launched_by = [f"--{option}={os.environ.get(variable, '1')}" for option, variable in size.items()]
        arguments = ["torchrun", *launched_by, *(a for a in arguments[1:2] if a != "-u"), *arguments[2:]]
    return shlex.join(arguments)

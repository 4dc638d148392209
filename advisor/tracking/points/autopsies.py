"""Reads the autopsy files of runs: facts about the first non-finite value of a training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from advisor import contract
from advisor.tracking.points.artifacts import UnusableFileError, open_artifact
from advisor.tracking.points.load import StoredRun

MAX_AUTOPSY_BYTES = 1_000_000
_MAX_THREADS = 8


def read_autopsy_text(file: Path) -> str:
    """Return the content of an autopsy file. Raises UnusableFileError if the file is not text or too large."""
    if file.stat().st_size > MAX_AUTOPSY_BYTES:
        raise UnusableFileError("is larger than any autopsy can be")
    try:
        return file.read_text("utf-8")
    except UnicodeDecodeError:
        raise UnusableFileError("is not a text file") from None


def add_autopsies(stored: Sequence[StoredRun], tracking_uri: str | None) -> tuple[list[StoredRun], tuple[str, ...]]:
    """Return the runs with their autopsies (without a tracking_uri, of local folders), and warnings about unusable ones."""
    reasons: Counter[str] = Counter()

    def read(run: StoredRun) -> str | UnusableFileError:
        if contract.TAG_AUTOPSY not in run.run.tags:
            return ""
        try:
            with open_artifact(run.artifact_root, contract.AUTOPSY_PATH, tracking_uri) as file:
                return read_autopsy_text(file)
        except UnusableFileError as error:
            return error
        except (OSError, RuntimeError) as error:  # Path.resolve raises RuntimeError for a symbolic link to itself
            return UnusableFileError(f"could not be read ({getattr(error, 'strerror', None) or type(error).__name__})")

    with ThreadPoolExecutor(_MAX_THREADS, thread_name_prefix="advisor-autopsy") as pool:
        autopsy_texts = list(pool.map(read, stored))
    runs = []
    for run, text in zip(stored, autopsy_texts, strict=True):
        if isinstance(text, UnusableFileError):
            reasons[str(text)] += 1
        runs.append(run._replace(run=replace(run.run, autopsy=text)) if isinstance(text, str) and text else run)
    warnings = []
    for reason, n in reasons.most_common():
        subject = "a non-finite value" if n == 1 else f"non-finite values in {n:,} runs"
        warnings.append(f"The cause of {subject} is not known, because the autopsy file {reason}.")
    return runs, tuple(warnings)

"""Checks that any input gives a verdict or one clear line within a deadline, and that nothing else is touched or run."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import signal
import sys
import tempfile
import traceback
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commands import status_of
from hypothesis import HealthCheck, settings
from promise import ALL

from advisor.model.errors import AdvisorError

FACTOR = float(os.environ.get("ADVISOR_FUZZ", "1" if ALL else "0.05"))
"""Factor for the number of cases; if it is above 1, the cases differ from run to run."""
DEADLINE_S = 120.0
"""Seconds per case. A case takes well below a second on an idle machine."""
MAX_ERROR_CHARACTERS = 1500
"""Maximum characters of an error, however long the names in the input are."""
_TURNS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u061c")
"""Marks that change the direction of text."""
_cases = 0


def cases(number: int) -> settings:
    """Return settings for `number` cases of a property, times `FACTOR`."""
    return settings(
        max_examples=max(1, round(number * FACTOR)),
        derandomize=FACTOR <= 1,
        deadline=None,
        database=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )


def counted() -> int:
    """Return the number of cases since the last call."""
    global _cases
    number, _cases = _cases, 0
    return number


class Hang(BaseException):
    """A case took longer than its deadline; no handler in the product may swallow this."""


@dataclass(frozen=True)
class Outcome:
    """Result of a command."""

    status: int
    out: str
    err: str


def advisor(*words: str, folder: Path, writes: tuple[str, ...] = ()) -> Outcome:
    """Run `advisor WORDS` in this process and check the promises for every input.

    Only files below one of the `writes`, relative to the `folder`, may change, and none if the status is 2.
    """
    before = _tree(folder)
    with _guarded(folder), _streams() as read:
        status = status_of(*words)
        outcome = Outcome(status, *read())
    after = _tree(folder)
    changed = {path for path in before.keys() | after.keys() if after.get(path) != before.get(path)}
    allowed = () if status == 2 else writes
    stray = sorted(p for p in changed if not any(p == w or p.startswith(f"{w}/") for w in allowed))
    assert not stray, f"wrote {stray[:5]}: {outcome}"
    check_text(outcome)
    return outcome


def check_text(outcome: Outcome) -> None:
    """Check the status, that there is one line if it is 2, and that no control character reaches the terminal."""
    assert outcome.status in (0, 1, 2), outcome
    for char in outcome.out + outcome.err:
        bad = char not in "\n\t" and (unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp") or char in _TURNS)
        assert not bad, f"U+{ord(char):04X} reaches the terminal"
    lines = [line for line in outcome.err.splitlines() if not line.startswith(("Note: ", "Importing as: "))]
    if outcome.status == 2:
        assert len(lines) == 1, outcome.err
        assert lines[0].startswith("advisor: "), outcome.err
        assert 12 < len(lines[0]) <= MAX_ERROR_CHARACTERS, outcome.err[:3000]
        for sign in ("Traceback", " object at 0x", "errors.pydantic.dev"):
            assert sign not in outcome.err, outcome.err


def called(call: Callable[[], Any], *, folder: Path) -> Any:
    """Like `advisor` for a single call: return its result, or None if it raised AdvisorError."""
    with _guarded(folder):
        try:
            return call()
        except AdvisorError as error:
            text = str(error)
    assert text.strip(), "an error without words"
    return None


@contextlib.contextmanager
def place() -> Iterator[Path]:
    """Yield an empty folder for one case."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _tree(folder: Path) -> dict[str, object]:
    """Return the folder's content: bytes of small files, mode and size of large ones."""
    found: dict[str, object] = {}
    for path in folder.rglob("*"):
        stat = path.lstat()
        small = path.is_file() and stat.st_size < 100_000
        found[path.relative_to(folder).as_posix()] = path.read_bytes() if small else (stat.st_mode, stat.st_size)
    return found


@contextlib.contextmanager
def _streams() -> Iterator[Callable[[], tuple[str, str]]]:
    """Capture standard output and error like a UTF-8 terminal, which rejects lone surrogates."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))

    def read() -> tuple[str, str]:
        return out.buffer.getvalue().decode(), err.buffer.getvalue().decode()  # type: ignore[attr-defined]

    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        yield read


# --- the guard: nothing outside of the folder is written, no code is run, no connection is made --------------------------------

_armed: list[Path] = []
_seen: list[str] = []
_FORBIDDEN = ("pickle.find_class", "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork")
_CHANGES = ("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.chmod", "os.link", "os.symlink", "os.truncate")


def _hook_unlock(event: str, args: tuple[Any, ...]) -> None:
    if not _armed:
        return
    if event in _FORBIDDEN or event == "socket.connect":
        _seen.append(f"{event} {args!r:.300}")
    elif event == "open":
        path, mode, flags = args
        writing = set(mode or "") & set("wax+") or (mode is None and (flags or 0) & (os.O_WRONLY | os.O_RDWR))
        if writing and isinstance(path, str | bytes | os.PathLike):
            _note_change(event, path)
    elif event in _CHANGES and isinstance(args[0], str | bytes | os.PathLike):
        _note_change(event, args[0])


def _note_change(event: str, path: str | bytes | os.PathLike[str]) -> None:
    absolute = os.path.abspath(os.fsdecode(path))
    if f"{absolute}/".startswith((f"{_armed[-1]}/", "/dev/null/")) or "__pycache__" in absolute:
        return
    if "site-packages" not in absolute:  # libraries' own caches
        _seen.append(f"{event} {absolute!r:.300}")


sys.addaudithook(_hook_unlock)


@contextlib.contextmanager
def watched(folder: Path) -> Iterator[None]:
    """Fail at the end of the block if a case did anything that it must not."""
    global _cases  # noqa: PLW0603
    _cases += 1
    unraised = sys.unraisablehook
    sys.unraisablehook = lambda error: _seen.append(f"a traceback is printed: {error.exc_value!r:.300}")
    _seen.clear()
    _armed.append(folder)
    try:
        yield
    finally:
        _armed.pop()
        sys.unraisablehook = unraised
    assert not _seen, _seen


@contextlib.contextmanager
def _guarded(folder: Path) -> Iterator[None]:
    def late(*_: object) -> None:
        raise Hang("".join(traceback.format_stack(sys._getframe(1))[-8:]))

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, DEADLINE_S)
    try:
        with watched(folder):
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)

"""Builds the command line of a job from the user's command by replacing its `{placeholders}`; `{{` and `}}` produce braces."""

from __future__ import annotations

import difflib
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from advisor.model.errors import AdvisorError
from advisor.model.placeholders import SCHEDULE, command_option
from advisor.model.space import HyperparameterValue

BUILT_IN_PLACEHOLDERS = ("trial", "seed", "json", "args", "study", "run_id", "max_train_steps", "evaluate_every", SCHEDULE)
"""Placeholders that do not stand for hyperparameters. A hyperparameter with the same name takes precedence."""
_ALL_HYPERPARAMETERS_PLACEHOLDERS = {"json", "args"}
"""Placeholders that stand for all hyperparameters together."""
_MAX_FINGERPRINTED_FILE_BYTES = 1_000_000
"""Maximum size in bytes of a named file that counts in the command's fingerprint; larger ones are assumed to be data."""
_PLACEHOLDER_PATTERN = re.compile(r"\{\{|\}\}|\{([A-Za-z_][\w./-]*)\}")


def placeholder_names(words: Iterable[str]) -> set[str]:
    return {m.group(1) for word in words for m in _PLACEHOLDER_PATTERN.finditer(word) if m.group(1)}


def check_placeholders(words: Sequence[str], parameters: Iterable[str], available: Iterable[str]) -> None:
    """Raise AdvisorError for an unknown placeholder. available: built-in placeholders that have a value in this study."""
    known = {*parameters, *available}
    for name in sorted(placeholder_names(words) - known):
        if name.partition(".")[0] in BUILT_IN_PLACEHOLDERS:
            raise AdvisorError(f"the command asks for {{{name}}}, which the study does not say; add it to the study file")
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {{{close[0]}}}?" if close else f"the placeholders are {', '.join(sorted(known))}"
        raise AdvisorError(f"the command asks for {{{name}}}, which is no hyperparameter of the study; {hint}")


def check_passes_searched(words: Sequence[str], searched: Mapping[str, str], parameters: Iterable[str]) -> None:
    """Raise AdvisorError if the command passes some hyperparameters but omits a searched one.

    searched: maps each searched hyperparameter to itself, or to a derived one that the command may pass instead.
    """
    names = placeholder_names(words)
    if must_append_hyperparameters(words, parameters) or "{args}" in words or "json" in names:
        return
    missing = [substitute for name, substitute in searched.items() if not {name, substitute} & names]
    if missing:
        options = " ".join(command_option(name) for name in missing)
        raise AdvisorError(
            f"the command does not pass {', '.join(missing)}, which the study searches; add {options}, or a word {{args}} for "
            "all, or pass --no-args if the training reads ADVISOR_PARAMS from its environment"
        )


def must_append_hyperparameters(words: Sequence[str], parameters: Iterable[str]) -> bool:
    """Return True if the command has no placeholder for any hyperparameter, so that all must be appended."""
    names = {n.partition(".")[0] if n.startswith(f"{SCHEDULE}.") else n for n in placeholder_names(words)}
    return names <= set(BUILT_IN_PLACEHOLDERS) - _ALL_HYPERPARAMETERS_PLACEHOLDERS - set(parameters)


def fill_placeholders(
    words: Sequence[str], params: Mapping[str, HyperparameterValue], built_in: Mapping[str, str], *, append: bool = True
) -> list[str]:
    """Return the command line of a job. append: append all hyperparameters if the command has no placeholder for any of them.

    If the trial has no value of a hyperparameter, its word is omitted, also with the option before it, as in
    `--momentum {momentum}`.
    """
    values = {**built_in, **{name: command_line_value(value) for name, value in params.items()}}

    def fill(word: str) -> str:
        return _PLACEHOLDER_PATTERN.sub(lambda match: values[match[1]] if match[1] else match[0][0], word)

    if append and must_append_hyperparameters(words, params):
        return [*map(fill, words), *hyperparameter_option_words(params)]
    out: list[str] = []
    for word in words:
        if word == "{args}" and "args" not in params:
            out += hyperparameter_option_words(params)
        elif placeholder_names([word]) <= set(values):
            out.append(fill(word))
        elif out and re.fullmatch(r"\{[^{}]+\}", word) and re.fullmatch(r"--?[A-Za-z][^=\s]*", out[-1]):
            out.pop()
    return out


def hyperparameter_option_words(params: Mapping[str, HyperparameterValue]) -> list[str]:
    return [word for name, value in params.items() for word in (f"--{name}", command_line_value(value))]


def command_fingerprint(words: Sequence[str]) -> str:
    """Return a digest of the command and of the scripts and configuration files that it names."""
    digest = hashlib.sha256("\0".join(words).encode(errors="surrogateescape"))
    for part in (part for word in words for part in word.split("=")):
        with suppress(OSError, ValueError):  # the word of the command is not a path
            path = Path(part)
            if path.is_file() and path.stat().st_size <= _MAX_FINGERPRINTED_FILE_BYTES:
                digest.update(b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def command_line_value(value: HyperparameterValue) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)

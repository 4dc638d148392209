"""The command line of a job: the user's command with `{placeholders}` filled in.

    python train.py --learning-rate {learning_rate} --momentum={momentum}    filled in place
    python train.py --seed {seed}                                            no hyperparameter: appends --learning_rate 0.1 ...
    python train.py --config {json}                                          path of a JSON file with all of them

`{{` and `}}` stand for braces. `BUILT_IN` lists the names besides the hyperparameters.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence

from advisor.model.errors import AdvisorError
from advisor.model.space import Value

BUILT_IN = ("trial", "seed", "json", "args", "study", "run_id", "max_train_steps", "evaluate_every")
"""Placeholders besides the hyperparameters, which take precedence over them."""
_COLLECTIVE = {"json", "args"}
"""Placeholders that pass all hyperparameters."""
_PLACEHOLDER = re.compile(r"\{\{|\}\}|\{([A-Za-z_][\w./-]*)\}")


def placeholders(words: Iterable[str]) -> set[str]:
    """Return the names in braces."""
    return {m.group(1) for word in words for m in _PLACEHOLDER.finditer(word) if m.group(1)}


def check(words: Sequence[str], parameters: Iterable[str], available: Iterable[str]) -> None:
    """Raise AdvisorError for an unknown placeholder. available: names of `BUILT_IN` that have a value."""
    known = {*parameters, *available}
    for name in sorted(placeholders(words) - known):
        if name in BUILT_IN:
            raise AdvisorError(
                f"the command asks for {{{name}}}, which the study does not say; add it to the study file"
            )
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {{{close[0]}}}?" if close else f"there are {', '.join(sorted(known))}"
        raise AdvisorError(f"the command asks for {{{name}}}, which is no hyperparameter of the study; {hint}")


def check_all(words: Sequence[str], searched: Mapping[str, str], parameters: Iterable[str]) -> None:
    """Raise AdvisorError if the command names some hyperparameters but omits one that the study searches.

    searched: maps each searched hyperparameter to the derived one that may replace it, or to itself.
    """
    names = placeholders(words)
    if appends(words, parameters) or "{args}" in words or "json" in names:
        return
    missing = [substitute for name, substitute in searched.items() if not {name, substitute} & names]
    if missing:
        options = " ".join(option(name) for name in missing)
        raise AdvisorError(
            f"the command does not pass {', '.join(missing)}, which the study searches; add {options}, or a word {{args}} for "
            "all, or pass --no-args if the training reads ADVISOR_PARAMS from its environment"
        )


def option(name: str) -> str:
    """Return the words that usually pass a hyperparameter to a training."""
    return f"--{name.replace('_', '-')} {{{name}}}"


def appends(words: Sequence[str], parameters: Iterable[str]) -> bool:
    """Return whether the hyperparameters are appended, because the command asks for none of them."""
    return placeholders(words) <= set(BUILT_IN) - _COLLECTIVE - set(parameters)


def fill(
    words: Sequence[str], params: Mapping[str, Value], built_in: Mapping[str, str], *, append: bool = True
) -> list[str]:
    """Return the command of a job. append: append the hyperparameters if the command asks for none.

    A word that asks for a hyperparameter whose condition does not hold is left out, with the option before it: all of
    `--momentum {momentum}`.
    """
    values = {**built_in, **{name: as_text(value) for name, value in params.items()}}
    if append and appends(words, params):
        return [*(_fill_word(word, values) for word in words), *arguments(params)]
    out: list[str] = []
    for word in words:
        if word == "{args}" and "args" not in params:
            out += arguments(params)
        elif placeholders([word]) <= set(values):
            out.append(_fill_word(word, values))
        elif out and re.fullmatch(r"\{[^{}]+\}", word) and re.fullmatch(r"--?[A-Za-z][^=\s]*", out[-1]):
            out.pop()
    return out


def arguments(params: Mapping[str, Value]) -> list[str]:
    """Return `--name value` for each hyperparameter."""
    return [word for name, value in params.items() for word in (f"--{name}", as_text(value))]


def as_text(value: Value) -> str:
    """Return a value as programs parse it: the shortest text of a number; true and false in lower case."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _fill_word(word: str, values: Mapping[str, str]) -> str:
    def replacement(match: re.Match[str]) -> str:
        name = match.group(1)
        return values[name] if name else match.group(0)[0]

    return _PLACEHOLDER.sub(replacement, word)

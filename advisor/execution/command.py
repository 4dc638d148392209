"""The command line of one job: the user's words with `{placeholders}` filled in.

    python train.py --learning-rate {learning_rate} --momentum={momentum}    each where it belongs
    python train.py --seed {seed}                                            names none: --learning_rate 0.1 ... at the end
    python train.py --config {json}                                          the path of a JSON file with all of them

`{{` and `}}` stand for braces. Besides the hyperparameters there are the names in `KNOWN`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence

from advisor.model.errors import AdvisorError
from advisor.model.space import Value

KNOWN = {
    "trial": "number of the trial, from 0",
    "seed": "seed of this training",
    "json": "path of a JSON file with the hyperparameters",
    "args": "all hyperparameters as --name value",
    "study": "name of the study",
    "run_id": "id of the MLflow run",
    "max_train_steps": "optimizer steps of a training, where the study says",
    "evaluate_every": "optimizer steps between evaluations, where the study says",
}
"""Placeholders besides the hyperparameters' names; a hyperparameter of the same name comes first."""
_ALL = {"json", "args"}
"""Those of `KNOWN` that pass all hyperparameters."""
_PLACEHOLDER = re.compile(r"\{\{|\}\}|\{([A-Za-z_][\w./-]*)\}")


def placeholders(words: Iterable[str]) -> set[str]:
    """The names in braces."""
    return {m.group(1) for word in words for m in _PLACEHOLDER.finditer(word) if m.group(1)}


def check(words: Sequence[str], parameters: Iterable[str], given: Iterable[str]) -> None:
    """Raises AdvisorError for a placeholder that nothing will fill. `given`: those of `KNOWN` that have a value."""
    known = {*parameters, *given}
    for name in sorted(placeholders(words) - known):
        if name in KNOWN:
            raise AdvisorError(
                f"the command asks for {{{name}}}, which the study does not say; add it to the study file"
            )
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {{{close[0]}}}?" if close else f"there are {', '.join(sorted(known))}"
        raise AdvisorError(f"the command asks for {{{name}}}, which is no hyperparameter of the study; {hint}")


def check_all(words: Sequence[str], searched: Mapping[str, str], parameters: Iterable[str]) -> None:
    """Raises AdvisorError where the command names some hyperparameters and leaves out one that the study searches.

    searched: each searched hyperparameter, with the derived one that stands in for it or its own name.
    """
    wanted = placeholders(words)
    if appends(words, parameters) or "{args}" in words or "json" in wanted:
        return
    left = [stands for name, stands in searched.items() if not {name, stands} & wanted]
    if left:
        options = " ".join(option(name) for name in left)
        raise AdvisorError(
            f"the command does not pass {', '.join(left)}, which the study searches; add {options}, or a word {{args}} for "
            "all, or pass --no-args if the training reads ADVISOR_PARAMS from its environment"
        )


def option(name: str) -> str:
    """The words that pass a hyperparameter, as most trainings take them."""
    return f"--{name.replace('_', '-')} {{{name}}}"


def appends(words: Sequence[str], parameters: Iterable[str]) -> bool:
    """Whether the hyperparameters follow at the end of a command: it asks for none of them."""
    return placeholders(words) <= set(KNOWN) - _ALL - set(parameters)


def fill(
    words: Sequence[str], params: Mapping[str, Value], given: Mapping[str, str], *, append: bool = True
) -> list[str]:
    """The words of one job. If they ask for no hyperparameter, all follow at the end, if `append`.

    A hyperparameter that a trial does not have (its condition does not hold) takes the word that asks for it along, and the option
    before it if there is one: `--momentum {momentum}` is left out as a whole.
    """
    values = {**given, **{name: as_text(value) for name, value in params.items()}}
    if append and appends(words, params):
        return [*(_filled(word, values) for word in words), *arguments(params)]
    out: list[str] = []
    for word in words:
        if word == "{args}" and "args" not in params:
            out += arguments(params)
        elif placeholders([word]) <= set(values):
            out.append(_filled(word, values))
        elif out and re.fullmatch(r"\{[^{}]+\}", word) and re.fullmatch(r"--?[A-Za-z][^=\s]*", out[-1]):
            out.pop()
    return out


def arguments(params: Mapping[str, Value]) -> list[str]:
    """`--name value` for each hyperparameter."""
    return [word for name, value in params.items() for word in (f"--{name}", as_text(value))]


def as_text(value: Value) -> str:
    """A value as a program reads it: shortest text that gives the same number; true and false in lower case."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _filled(word: str, values: Mapping[str, str]) -> str:
    def one(match: re.Match[str]) -> str:
        name = match.group(1)
        return values[name] if name else match.group(0)[0]

    return _PLACEHOLDER.sub(one, word)

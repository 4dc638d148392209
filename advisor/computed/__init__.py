"""Computes quantities of a study that several rules use. The decorator `@computed` computes each quantity only once per study."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from advisor.model.study import Study, Trial

P = ParamSpec("P")
T = TypeVar("T")


def computed(function: Callable[Concatenate[Study, P], T]) -> Callable[Concatenate[Study, P], T]:
    """Cache the results of a function in its first argument, a study. Other arguments must be hashable values or trials."""

    @wraps(function)
    def cached(study: Study, *args: P.args, **kwargs: P.kwargs) -> T:
        key = (function, *map(_argument_key, args), *sorted((name, _argument_key(value)) for name, value in kwargs.items()))
        if key not in study.computed:
            study.computed[key] = function(study, *args, **kwargs)
        result: T = study.computed[key]
        return result

    return cast(Callable[Concatenate[Study, P], T], cached)


def _argument_key(argument: Any) -> Any:
    return ("trial", argument.index) if isinstance(argument, Trial) else argument

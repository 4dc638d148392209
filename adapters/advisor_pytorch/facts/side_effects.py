"""Checks whether calling a function before the training would have side effects."""

from __future__ import annotations

import builtins
import dis
import functools
import inspect
import math
import types
from collections.abc import Callable, Iterable

_ALLOWED_BUILTINS = frozenset(getattr(builtins, name) for name in "abs bool float int len max min pow range round sum".split())
_ALLOWED_MATH_NAMES = frozenset(dir(math)) | frozenset(
    "clip cos exp interp linspace log maximum minimum pi power real sin sqrt tanh".split()
)
_MAX_CALL_DEPTH = 3


def is_side_effect_free(function: object, depth: int = _MAX_CALL_DEPTH) -> bool:
    """Return whether a Python function writes only local variables and calls only mathematical functions.

    Its globals and closure may contain only plain values, objects with plain attributes, math, numpy, and such functions.
    """
    if isinstance(function, functools.partial):
        bound_arguments = [*function.args, *function.keywords.values()]
        return all(_is_plain_value(value) for value in bound_arguments) and is_side_effect_free(function.func, depth)
    if isinstance(function, types.BuiltinFunctionType):
        return function.__module__ == "math" or function in _ALLOWED_BUILTINS
    if not isinstance(function, types.FunctionType) or depth == 0:
        return False
    try:
        outer_variables = inspect.getclosurevars(function)
    except (TypeError, ValueError):
        return False
    used_values = [*outer_variables.nonlocals.values(), *outer_variables.globals.values(), *outer_variables.builtins.values()]
    defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    if not all(_is_safe_value(value, depth) for value in [*used_values, *defaults]):
        return False
    return _has_only_pure_instructions(
        function.__code__, lambda name: name in _ALLOWED_MATH_NAMES or _is_attribute_without_code(name, used_values)
    )


def _has_only_pure_instructions(code: types.CodeType, may_load: Callable[[str], bool]) -> bool:
    if code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        return False
    if any(isinstance(constant, types.CodeType) for constant in code.co_consts):
        return False
    for step in dis.get_instructions(code):
        if step.opname.startswith(("STORE_", "DELETE_")) and "_FAST" not in step.opname:
            return False
        if step.opname.startswith("IMPORT_"):
            return False
        if step.opname in ("LOAD_ATTR", "LOAD_METHOD") and not may_load(str(step.argval)):
            return False
    return True


def _is_safe_value(value: object, depth: int) -> bool:
    if isinstance(value, type):
        return value in _ALLOWED_BUILTINS or issubclass(value, Exception)
    if isinstance(value, types.ModuleType):
        return value.__name__ in ("math", "numpy")
    if callable(value):
        return is_side_effect_free(value, depth - 1)
    return _is_plain_value(value) or hasattr(value, "__dict__")


def _is_attribute_without_code(name: str, holders: Iterable[object]) -> bool:
    """Return whether the attribute is plain data; reading a property would run code."""
    missing = object()
    values = [inspect.getattr_static(holder, name, missing) for holder in holders]
    return all(value is missing or _is_plain_value(value) for value in values) and any(value is not missing for value in values)


def _is_plain_value(value: object) -> bool:
    if isinstance(value, (tuple, list)):
        return all(_is_plain_value(part) for part in value)
    if isinstance(value, dict):
        return all(_is_plain_value(part) for part in value.values())
    return value is None or isinstance(value, (bool, int, float, str))

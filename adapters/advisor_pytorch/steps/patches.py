"""Replaces library functions by wrappers for as long as at least one listener is registered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

Listener = TypeVar("Listener")


class FunctionPatches(Generic[Listener]):
    """Manages the replaced functions and the listeners that their wrappers call. A wrapper calls all `listeners`, which must
    not raise errors."""

    def __init__(self, install: Callable[[], None]) -> None:
        """install: function that calls `replace` for each function that needs a wrapper."""
        self._install = install
        self._replaced: list[tuple[Any, str, Any, Any]] = []
        self.listeners: list[Listener] = []

    def listen(self, listener: Listener) -> None:
        """Add a listener; the first listener makes the wrappers replace the original functions."""
        if not self.listeners:
            self._install()
        self.listeners.append(listener)

    def ignore(self, listener: Listener) -> None:
        """Remove a listener; removing the last listener restores the original functions."""
        if listener in self.listeners:
            self.listeners.remove(listener)
        if not self.listeners:
            self._replaced = [entry for entry in reversed(self._replaced) if not self._restore_original(*entry)]

    def replace(self, owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
        """Replace `owner.name` by `wrap(owner.name)`, unless our wrapper is still in place."""
        if any(one is owner and known == name for one, known, *_ in self._replaced):
            return
        original = getattr(owner, name)
        wrapper = wrap(original)
        setattr(owner, name, wrapper)
        self._replaced.append((owner, name, original, wrapper))

    @staticmethod
    def _restore_original(owner: Any, name: str, original: Any, wrapper: Any) -> bool:
        """Restore the original function and return True; return False if another library has wrapped our wrapper."""
        if getattr(owner, name) is not wrapper:
            return False
        setattr(owner, name, original)
        return True

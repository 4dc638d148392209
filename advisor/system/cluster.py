"""A connection to a Ray cluster, for trainings and for analyses. Ray core alone."""

from __future__ import annotations

import logging
import os
import socket
from typing import Any

from advisor.model.errors import AdvisorError

_PATIENCE_S = 10.0
"""How long a cluster's head may take to answer."""


class Cluster:
    """A cluster that this process is connected to, until it leaves; a connection that was there before stays."""

    def __init__(self, address: str | None) -> None:
        """address: of a cluster's head, `auto`, or None: the one that RAY_ADDRESS names, or a new one on this machine.

        Raises AdvisorError without Ray, or where no cluster answers.
        """
        self.ray = _ray()
        self._mine = not self.ray.is_initialized()
        if self._mine:
            logging.getLogger("ray").setLevel(logging.ERROR)
            where = address or os.environ.get("RAY_ADDRESS") or "this machine"
            try:
                _knock(where)
                self.ray.init(address=address, log_to_driver=False, configure_logging=False)
            except (OSError, ValueError, RuntimeError) as error:
                raise AdvisorError(f"no Ray cluster answers at {where}: {str(error).splitlines()[0]}") from None

    def leave(self) -> None:
        """End the connection, and with it all that was asked for through it."""
        if self._mine:
            self.ray.shutdown()


def _knock(address: str) -> None:
    """Raises OSError where nobody listens at `host:port` or `ray://host:port`; Ray itself would try for ten minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_PATIENCE_S).close()


def _ray() -> Any:
    # What dies on a node is told of by us; Ray would print half a page of it among what the command prints.
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")
    try:
        import ray
    except ImportError:
        raise AdvisorError('--on ray needs Ray: pip install "tuning-advisor[ray]"') from None
    return ray

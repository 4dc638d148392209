"""Connects to a Ray cluster, using only Ray Core."""

from __future__ import annotations

import logging
import os
import socket
from typing import Any

from advisor.model.errors import AdvisorError

_CONNECT_TIMEOUT_S = 10.0


class RayCluster:
    """A connection to a Ray cluster. `disconnect` closes it, unless the process was already connected before."""

    def __init__(self, address: str | None) -> None:
        """address: address of the cluster's head node; "auto" to find a running cluster; None for RAY_ADDRESS or, if this is
        not set, a new cluster on this machine.

        Raises AdvisorError if Ray is not installed or no Ray cluster responds.
        """
        self.ray = _import_ray()
        self._connected_here = not self.ray.is_initialized()
        if self._connected_here:
            logging.getLogger("ray").setLevel(logging.ERROR)
            where = address or os.environ.get("RAY_ADDRESS") or "this machine"
            try:
                _check_listening(where)
                self.ray.init(address=address, log_to_driver=False, configure_logging=False)
            except (OSError, ValueError, RuntimeError) as error:
                raise AdvisorError(f"no Ray cluster responds at {where}: {str(error).splitlines()[0]}") from None

    def disconnect(self) -> None:
        """Close the connection. Ray then cancels all tasks and actors that this connection submitted."""
        if self._connected_here:
            self.ray.shutdown()


def _check_listening(address: str) -> None:
    """Raise OSError if no process listens at the address `host:port` or `ray://host:port`. Without this check, Ray would retry
    a connection to a wrong address for ten minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_TIMEOUT_S).close()


def _import_ray() -> Any:
    # A crashed worker is reported in one line; the output of Ray itself would fill half a page.
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")
    try:
        import ray
    except ImportError:
        raise AdvisorError('--on ray needs Ray: pip install "tuning-advisor[ray]"') from None
    return ray

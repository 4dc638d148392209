"""Real Ray clusters of several nodes, all on this machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def ray_cluster(*nodes: Mapping[str, Any]) -> Iterator[Any]:
    """Start a cluster with a node for each of these resources; the first is its head."""
    import ray
    from ray.cluster_utils import Cluster

    head, *others = nodes
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # nodes import the same packages as the tests
        cluster = Cluster(initialize_head=True, head_node_args={**head, "include_dashboard": False})
        try:
            for node in others:
                cluster.add_node(**node)
            yield cluster
        finally:
            ray.shutdown()
            cluster.shutdown()

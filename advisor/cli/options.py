"""Options that several commands share."""

from __future__ import annotations

from typing import Any

import click

SEVERITIES = ("note", "warning", "critical")


def tracking_option(command: Any) -> Any:
    """`--tracking-uri`, for the argument `tracking_uri`."""
    return click.option(
        "--tracking-uri",
        metavar="URI",
        help="Where MLflow keeps the runs: sqlite:///mlflow.db, http://…  [default: $MLFLOW_TRACKING_URI or ./mlflow.db]",
    )(command)


def ray_address_option(command: Any) -> Any:
    """`--ray-address`, for the argument `ray_address`."""
    return click.option(
        "--ray-address",
        metavar="ADDRESS",
        help="The Ray cluster.  [default: RAY_ADDRESS, or a new one on this machine]",
    )(command)


def reaches(severity: str, level: str) -> bool:
    """Whether a finding is at least as severe as `--fail-on` says."""
    return SEVERITIES.index(severity) >= SEVERITIES.index(level)

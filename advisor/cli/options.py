"""Options that several commands share."""

from __future__ import annotations

from typing import Any

import click


def tracking_option(command: Any) -> Any:
    """`--tracking-uri`, for the argument `tracking_uri`."""
    return click.option(
        "--tracking-uri",
        metavar="URI",
        help="Where MLflow keeps the runs: sqlite:///mlflow.db, http://…  [default: $MLFLOW_TRACKING_URI or ./mlflow.db]",
    )(command)

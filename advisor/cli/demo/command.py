"""The command `advisor demo`."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import click

from advisor.cli.demo.loop import run_demo
from advisor.model.errors import AdvisorError


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("demo-out"), show_default=True, help="Output folder.")
@click.option(
    "--trials", type=click.IntRange(min=6, max=200), default=20, show_default=True, help="Number of trials per round."
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the first trial.")
def demo(out: Path, trials: int, seed: int) -> None:
    """Tune a small network on real data in two rounds: first in an unsuitable space, then in the space the advisor suggests.

    The demo takes a minute or two on two cores. The demo needs the extra `demo`: pip install "tuning-advisor[demo]".
    """
    missing = [module for module in ("torch", "sklearn", "advisor_pytorch") if find_spec(module) is None]
    if missing:
        raise AdvisorError(f'the demo needs {", ".join(missing)}: pip install "tuning-advisor[demo]"')
    run_demo(out, trials=trials, seed=seed, echo=click.echo)

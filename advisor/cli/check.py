"""The command `advisor check`."""

from __future__ import annotations

from pathlib import Path

import click

from advisor.model.errors import AdvisorError
from advisor.model.spec_yaml import load_study_file


@click.command()
@click.argument("files", type=click.Path(path_type=Path), nargs=-1, required=True, metavar="STUDY...")
def check(files: tuple[Path, ...]) -> None:
    """Check study files: print one line for each file with an error. Without errors, print nothing.

    As a pre-commit hook, the command checks the study files of each commit; see "In continuous integration" in the
    documentation.

    \b
    advisor check study.yaml advisor-report/next/*.yaml
    """
    errors = []
    for file in files:
        try:
            load_study_file(file)
        except AdvisorError as error:
            errors.append(str(error) if str(file) in str(error) else f"{file}: {error}")
    for line in errors[:-1]:
        click.echo(f"advisor: {line}", err=True)
    if errors:
        raise AdvisorError(errors[-1])

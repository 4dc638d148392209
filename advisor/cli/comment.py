"""The option `--markdown`, which writes a command's answer as Markdown for a pull-request comment."""

from __future__ import annotations

from pathlib import Path

import click

from advisor.model.errors import convert_os_errors
from advisor.model.words import replace_surrogates
from advisor.system.atomic import write_files

markdown_option = click.option(
    "--markdown", type=click.Path(path_type=Path), metavar="FILE", help="Also write the answer as a comment for a pull request."
)


def write_markdown_file(text: str, file: Path) -> None:
    """Write the text to the file that the option `--markdown` names. Raises AdvisorError if writing fails."""
    with convert_os_errors(f"cannot write {str(file)!r}"):
        write_files({file: replace_surrogates(text)})

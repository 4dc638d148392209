"""The command `advisor`: finds its subcommands and converts errors to one line and an exit status."""

from __future__ import annotations

import errno
import io
import os
import sys
import traceback
from contextlib import suppress
from importlib import import_module
from types import TracebackType

import click

from advisor import __version__
from advisor.contract.redact import redact, register_argument_secrets
from advisor.model.errors import AdvisorError

_MAX_ERROR_CHARS = 1200
_COMMAND_SUMMARIES = {
    "analyze": "Analyze an experiment and say what to do next.",
    "autopsy": "Say why a run's loss became NaN or infinite.",
    "check": "Check study files.",
    "compare": "Decide whether to adopt a candidate in place of an incumbent.",
    "demo": "Show the whole loop on a small real training.",
    "explain": "Print the page of a rule.",
    "export": "Write a study in the format of another tool.",
    "gate": "Decide whether to keep a proposal, discard it, or run more seeds.",
    "guard": "Judge the trials that are still running.",
    "history": "Show the rounds of studies and how often the advice was right.",
    "import": "Import results of other tools into MLflow.",
    "init": "Write the first study of a project.",
    "ladder": "Predict results of the next model size from smaller models.",
    "mcp": "Answer agents over the Model Context Protocol.",
    "rules": "List the rules.",
    "run": "Train the trials of a study.",
    "sample": "Draw trials from a study.",
    "schema": "Print the JSON Schema of a file format.",
    "survey": "Analyze all experiments of a store.",
    "sync": "Deliver logs to a store that was unreachable.",
    "tune": "Search in blocks of trials; the analysis decides after each.",
    "watch": "Analyze an experiment again while trials come in.",
}


class _LazyCommands(click.Group):
    """Command group that imports a subcommand's module only when needed, because most modules need slow libraries."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return sorted(_COMMAND_SUMMARIES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _COMMAND_SUMMARIES:
            return None
        name = "import_" if cmd_name == "import" else cmd_name
        command: click.Command = getattr(import_module(f"advisor.cli.{name}"), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(sorted(_COMMAND_SUMMARIES.items()))


@click.group(cls=_LazyCommands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="advisor")
def cli() -> None:
    """Analyze an MLflow study by the rules of the Deep Learning Tuning Playbook, and plan the next study.

    \b
    advisor init                           write the first study of a project
    advisor analyze my-experiment          read the study; writes advisor-report/report.html and next/*.yaml
    advisor run next/1-….yaml -- python train.py --lr {lr}
                                           train the next study's trials
    advisor tune study.yaml -- python train.py --lr {lr} --seed {seed}
                                           both by itself: train, analyze, decide, after every few trials
    advisor history                        the rounds so far, and how often the advice was right
    advisor demo                           see the whole loop on a small real training
    """


_UNUSABLE_PATH_ERRNOS = (errno.ENAMETOOLONG, errno.ELOOP, errno.EACCES, errno.EPERM, errno.EIO, errno.ENOSPC, errno.EROFS)
"""Codes of operating-system errors whose cause is the user's path or disk, not a bug in this program."""


def main(arguments: list[str] | None = None) -> None:
    register_argument_secrets(sys.argv[1:] if arguments is None else arguments)
    # Prevent two causes of crashes: closed standard streams, and names that the terminal cannot encode.
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - open until the end
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    try:
        cli.main(args=arguments, prog_name="advisor", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(2)
    except click.ClickException as error:
        message, context = error.format_message(), getattr(error, "ctx", None)
        _exit_with_error(message if context is None else f"{message.rstrip('.')} (see {context.command_path} --help)")
    except AdvisorError as error:
        _exit_with_error(str(error), error.exit_status)
    except (KeyboardInterrupt, click.Abort) as error:
        interrupt = error.__cause__ or error  # for Ctrl-C, click raises Abort with the KeyboardInterrupt as its cause
        click.echo("; ".join(["advisor: interrupted", *map(str, interrupt.args)]), err=True)
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except Exception as error:
        if os.environ.get("ADVISOR_DEBUG"):
            sys.excepthook = _show_traceback
            raise
        if isinstance(error, FileNotFoundError) and error.filename is None:
            _exit_with_error("the working directory was deleted; change to another one")
        if isinstance(error, OSError) and error.errno in _UNUSABLE_PATH_ERRNOS:
            intended_use = "write the output" if error.filename is None else f"use {str(error.filename)[:100]!r}"
            _exit_with_error(f"cannot {intended_use}: {os.strerror(error.errno).lower()}")
        _exit_with_error(f"unexpected {type(error).__name__}: {error} (a bug; ADVISOR_DEBUG=1 shows where)")


def _show_traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print the traceback without the credentials that error messages of database drivers may contain."""
    click.echo(redact("".join(traceback.format_exception(kind, error, trace))), err=True, nl=False)


def _exit_with_error(message: str, status: int = 2) -> None:
    one_line = " ".join("".join(c if c.isprintable() else " " for c in redact(message)).split())
    if len(one_line) > _MAX_ERROR_CHARS:  # drop the middle of the message, because the end says what to do
        one_line = f"{one_line[: _MAX_ERROR_CHARS * 2 // 3]} … {one_line[-_MAX_ERROR_CHARS // 3 :]}"
    with suppress(OSError):  # if standard error is closed, the exit status still shows the failure
        click.echo(f"advisor: {one_line}", err=True)
    sys.exit(status)

"""The command `advisor` and its subcommands; each only parses, calls the library and prints."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from types import TracebackType

import click

from advisor.cli.analyze import analyze
from advisor.cli.compare import compare
from advisor.cli.export import export
from advisor.cli.history import history
from advisor.cli.imports import import_
from advisor.cli.init import init
from advisor.cli.run import run
from advisor.cli.sync import sync
from advisor.contract.redact import redact
from advisor.model.errors import AdvisorError
from advisor.version import __version__

_MOST = 1200
"""Characters of an error."""


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="advisor")
def cli() -> None:
    """Reads an MLflow study as an expert with the Deep Learning Tuning Playbook would, and writes the next one.

    \b
    advisor init                           write the first study of a project
    advisor analyze my-experiment          read the study; writes advisor-report/report.html and next/*.yaml
    advisor run next/1-….yaml -- python train.py --lr {lr}
                                           train the next study's trials
    advisor history                        the rounds so far, and how often the advice was right
    advisor demo                           see the whole loop on a small real training
    """


cli.add_command(import_)


cli.add_command(analyze)


@cli.command()
def rules() -> None:
    """List the rules: id, chapter and what each looks for."""
    from advisor.engine.registry import load_rules

    loaded = load_rules()
    width = max((len(rule.rule_id()) for rule in loaded), default=0)
    for rule in loaded:
        click.echo(f"{rule.rule_id():{width}}  {rule.goal:14}  {rule.summary()}")
    click.echo(f"\n{len(loaded)} rules. `advisor explain RULE` prints a rule's page.")


@cli.command()
@click.argument("rule")
def explain(rule: str) -> None:
    """Print the page of RULE: what it looks at, why it matters, what to do, its thresholds."""
    from advisor.engine.pages import rule_page
    from advisor.engine.registry import load_rules

    loaded = {r.rule_id(): r for r in load_rules()}
    if rule not in loaded:
        import difflib

        close = difflib.get_close_matches(rule, loaded, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else "; `advisor rules` lists them"
        raise AdvisorError(f"there is no rule {rule!r}{hint}")
    click.echo(rule_page(type(loaded[rule])))


@cli.command()
@click.argument("study", type=click.Path(path_type=Path))
@click.option(
    "-n", "--count", type=click.IntRange(min=0), help="How many trials.  [default: the study's number of trials, or 10]"
)
@click.option(
    "--skip", type=click.IntRange(min=0), default=0, help="Leave out the first K: continues a study with more trials."
)
@click.option("--format", "format_", type=click.Choice(["jsonl", "csv", "table"]), default="jsonl", show_default=True)
def sample(study: Path, count: int | None, skip: int, format_: str) -> None:
    """Draw trials from the space of STUDY (a YAML file): one trial's parameters a line.

    A scrambled, shifted Halton sequence: the same study file gives the same trials on every machine.
    """
    from advisor.cli.trials import write_trials
    from advisor.model.spec_yaml import load
    from advisor.planning.sampling.halton import sample as draw

    spec = load(study)
    wanted = count if count is not None else (spec.trials or 10)
    write_trials(draw(spec, wanted, skip=skip), list(spec.parameters), format_, sys.stdout)


@cli.command()
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("demo-out"), show_default=True, help="Output folder."
)
@click.option("--trials", type=click.IntRange(min=6, max=200), default=20, show_default=True, help="Trials a round.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
def demo(out: Path, trials: int, seed: int) -> None:
    """Tune a small network on real data in two rounds: a study in a wrong space, then the one that the advisor writes.

    Takes a minute or two on two cores. Needs the extra `demo`: pip install "tuning-advisor[demo]".
    """
    from advisor.cli.demo import run_demo

    run_demo(out, trials=trials, seed=seed, say=click.echo)


@cli.command()
@click.argument("what", type=click.Choice(["findings", "study"]))
def schema(what: str) -> None:
    """Print the JSON Schema of findings.json or of a study file."""
    import json

    from advisor.model import spec_yaml
    from advisor.report import findings_schema

    click.echo(json.dumps(findings_schema() if what == "findings" else spec_yaml.schema(), indent=2))


cli.add_command(init)
cli.add_command(run)
cli.add_command(history)
cli.add_command(sync)
cli.add_command(compare)
cli.add_command(export)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; errors that a person may see are one line and exit status 2."""
    try:
        cli.main(args=arguments, prog_name="advisor", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(2)
    except click.ClickException as error:
        _fail(_usage(error))
    except AdvisorError as error:
        _fail(str(error))
    except (KeyboardInterrupt, click.Abort):
        click.echo("advisor: interrupted", err=True)
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except Exception as error:
        if os.environ.get("ADVISOR_DEBUG"):
            sys.excepthook = _show_where
            raise
        _fail(f"unexpected {type(error).__name__}: {error} (a bug; ADVISOR_DEBUG=1 shows where)")


def _show_where(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """As Python shows an error that nobody caught, without credentials, which drivers put into their messages."""
    click.echo(redact("".join(traceback.format_exception(kind, error, trace))), err=True, nl=False)


def _usage(error: click.ClickException) -> str:
    """What is wrong with the arguments, and where to read how they should be."""
    context = getattr(error, "ctx", None)
    if context is None:
        return error.format_message()
    return f"{error.format_message().rstrip('.')} ({context.command_path} --help shows how)"


def _fail(message: str) -> None:
    one_line = " ".join("".join(c if c.isprintable() else " " for c in redact(message)).split())
    if len(one_line) > _MOST:  # of names that are pages long; what to do stands at the end
        one_line = f"{one_line[: _MOST * 2 // 3]} … {one_line[-_MOST // 3 :]}"
    click.echo(f"advisor: {one_line}", err=True)
    sys.exit(2)

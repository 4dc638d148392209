"""The command `advisor` and its subcommands; each only parses, calls the library and prints."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from advisor.cli.compare import compare
from advisor.cli.history import history
from advisor.cli.imports import import_
from advisor.cli.init import init
from advisor.cli.options import tracking_option
from advisor.cli.run import run
from advisor.cli.sync import sync
from advisor.errors import AdvisorError
from advisor.version import __version__

if TYPE_CHECKING:
    from advisor.report import Report

SEVERITIES = ("note", "warning", "critical")


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


@cli.command()
@click.argument("experiment")
@tracking_option
@click.option("--objective", metavar="METRIC", help="Metric to judge trials by.  [default: as logged, else inferred]")
@click.option("--direction", type=click.Choice(["minimize", "maximize"]), help="Which way the objective is better.")
@click.option(
    "--study", "study_file", type=click.Path(path_type=Path), help="Study file that declares the search space."
)
@click.option(
    "--filter", "filter_", metavar="EXPR", help="Only runs that match, in MLflow's language: params.model = 'cnn'."
)
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("advisor-report"), show_default=True, help="Output folder."
)
@click.option(
    "--rules", "rule_folders", multiple=True, type=click.Path(path_type=Path), help="Folder with rules of your own."
)
@click.option(
    "--only-this-round",
    is_flag=True,
    help="Leave out the trials of earlier rounds that lie in this study's space.  [default: they count as data]",
)
@click.option(
    "--fail-on", type=click.Choice(SEVERITIES), help="Exit with status 1 if a finding is at least this severe."
)
@click.option("--quiet", "-q", is_flag=True, help="Print nothing but errors.")
def analyze(
    experiment: str,
    tracking_uri: str | None,
    objective: str | None,
    direction: Literal["minimize", "maximize"] | None,
    study_file: Path | None,
    filter_: str | None,
    out: Path,
    rule_folders: tuple[Path, ...],
    only_this_round: bool,
    fail_on: str | None,
    quiet: bool,
) -> None:
    """Read EXPERIMENT (its name or id) and say what to do next.

    Writes OUT/report.html (open it in a browser), OUT/findings.json and OUT/next/*.yaml (the next studies, the first to run first).

    \b
    advisor analyze cifar --tracking-uri http://localhost:5000
    advisor analyze cifar --objective val/accuracy --direction maximize --study study.yaml
    """
    from advisor.analysis import analyze as run
    from advisor.cli.progress import progress

    if str(out) in ("", "."):
        raise AdvisorError("--out must name a folder of its own, such as advisor-report")
    with progress(enabled=not quiet) as tell:
        report = run(
            experiment,
            tracking_uri=tracking_uri,
            objective=objective,
            direction=direction,
            study=study_file,
            filter=filter_,
            rules=rule_folders,
            only_this_round=only_this_round,
            command=_command(experiment, objective, direction, study_file, filter_, only_this_round),
            on_progress=tell,
        )
    report.save(out)
    if not quiet:
        _show(report, out)
    if fail_on is not None and _reached(report, fail_on):
        sys.exit(1)


def _command(
    experiment: str,
    objective: str | None,
    direction: str | None,
    study: Path | None,
    filter_: str | None,
    only_this_round: bool,
) -> str:
    """The command that repeats the analysis, without the tracking URI, which may hold a password."""
    given = (("--objective", objective), ("--direction", direction), ("--study", study), ("--filter", filter_))
    words = ["advisor", "analyze", experiment] + [
        str(w) for flag, value in given if value is not None for w in (flag, value)
    ]
    return shlex.join([*words, *(["--only-this-round"] if only_this_round else [])])


def _show(report: Report, out: Path) -> None:
    from rich.console import Console

    from advisor.report.terminal import print_report

    print_report(report, Console())
    click.echo(f"\nReport: {out / 'report.html'}")


def _reached(report: Report, level: str) -> bool:
    return any(SEVERITIES.index(f.severity) >= SEVERITIES.index(level) for f in report.findings)


@cli.command()
def rules() -> None:
    """List the rules: id, chapter and what each looks for."""
    from advisor.registry import load_rules

    loaded = load_rules()
    width = max((len(rule.rule_id()) for rule in loaded), default=0)
    for rule in loaded:
        click.echo(f"{rule.rule_id():{width}}  {rule.goal:14}  {rule.summary()}")
    click.echo(f"\n{len(loaded)} rules. `advisor explain RULE` prints a rule's page.")


@cli.command()
@click.argument("rule")
def explain(rule: str) -> None:
    """Print the page of RULE: what it looks at, why it matters, what to do, its thresholds."""
    from advisor.pages import rule_page
    from advisor.registry import load_rules

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
    from advisor.sampling import sample as draw
    from advisor.spec_yaml import load

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
    from advisor.demo import run_demo

    run_demo(out, trials=trials, seed=seed, say=click.echo)


@cli.command()
@click.argument("what", type=click.Choice(["findings", "study"]))
def schema(what: str) -> None:
    """Print the JSON Schema of findings.json or of a study file."""
    import json

    from advisor.report import findings_schema
    from advisor.spec import StudySpec

    click.echo(json.dumps(findings_schema() if what == "findings" else StudySpec.model_json_schema(), indent=2))


cli.add_command(init)
cli.add_command(run)
cli.add_command(history)
cli.add_command(sync)
cli.add_command(compare)


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
            raise
        _fail(f"unexpected {type(error).__name__}: {error} (a bug; ADVISOR_DEBUG=1 shows where)")


def _usage(error: click.ClickException) -> str:
    """What is wrong with the arguments, and where to read how they should be."""
    context = getattr(error, "ctx", None)
    if context is None:
        return error.format_message()
    return f"{error.format_message().rstrip('.')} ({context.command_path} --help shows how)"


def _fail(message: str) -> None:
    one_line = " ".join("".join(c if c.isprintable() else " " for c in message).split())
    click.echo(f"advisor: {one_line}", err=True)
    sys.exit(2)

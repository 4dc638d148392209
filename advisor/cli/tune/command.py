"""The command `advisor tune`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from advisor.cli.launching import Launcher, LaunchOptions, launch_options, print_analyze_command, print_commands
from advisor.cli.notifying import notifier_for_command
from advisor.cli.options import rules_option
from advisor.cli.tune import text
from advisor.cli.tune.loop import SearchLoop
from advisor.cli.tune.record import SearchRecord
from advisor.engine.registry import load_rules
from advisor.engine.settings import find_settings
from advisor.execution.engines.devices import find_gpus, make_slots
from advisor.execution.job import default_seed, trial_count
from advisor.execution.job_env import check_command, command_passes_seed, study_folder
from advisor.model.errors import AdvisorError
from advisor.model.optimizers import shared_learning_rate
from advisor.model.spec import Sampler, StudySpec
from advisor.model.spec_yaml import load_study_file
from advisor.planning.blocks import Block, Search, leader
from advisor.planning.blocks.policy import BLOCKS_BEFORE_ANALYSIS
from advisor.system.notifier import Notification
from advisor.tracking.stores.location import default_location_for_writing, parse_tracking_uri

DEFAULT_SEARCH_FOLDER = Path("advisor-tune")


@click.command()
@click.argument("study", type=click.Path(path_type=Path))
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option(
    "--trials",
    type=click.IntRange(min=1),
    metavar="N",
    help="Budget, in trials of the study's length; a longer trial counts as several.  [default: as in the study file]",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    metavar="N",
    help="Seed of the first trial; the others differ.  [default: 0 in round 1]",
)
@launch_options
@click.option(
    "--out", type=click.Path(path_type=Path), help="Folder for the blocks and the trials' output.  [default: advisor-tune]"
)
@rules_option
@click.option("--dry-run", is_flag=True, help="Only print the commands of the first block.")
def tune(
    study: Path,
    command: tuple[str, ...],
    trials: int | None,
    seed: int | None,
    options: LaunchOptions,
    out: Path | None,
    rules: tuple[Path, ...],
    dry_run: bool,
) -> None:
    """Search in blocks of trials: after each block, the analysis decides whether the space of STUDY (a YAML file) is right.

    \b
    advisor tune study.yaml --trials 48 -- python train.py --lr {learning_rate} --seed {seed}
    advisor tune study.yaml --trials 48 -j 4 -- python train.py {args} --max-train-steps {max_train_steps} --seed {seed}

    The first quarter of the trials covers the whole search space. Each later block contains a twelfth of all trials. With -j,
    blocks may be larger, because a block has at least as many trials as run in parallel. If the analysis extends the search
    space, the next block searches the new part; otherwise an adaptive sampler draws the next block, based on all results so
    far. The last trials (at most four, and at most a ninth of all) repeat the leading setting with other seeds. Write the
    command as for `advisor run`; include {max_train_steps} and {schedule} if the analysis may change these values.

    After each decision, the command writes a study file to OUT that states the reason. Ctrl-C stops cleanly; run the same
    command again to resume, even after a kill -9; no trial and no decision is repeated. A larger --trials continues the search.
    The exit status is 1 if no setting has a result, or if all trials of a block failed.
    """
    spec = load_study_file(study)
    search, record = _open_search(spec, command, trial_count(spec, trials), options, rules)
    folder = study_folder(out or DEFAULT_SEARCH_FOLDER, record.experiment)
    first_seed = default_seed(spec) if seed is None else seed
    if dry_run:
        first_block = search.next_block([])
        assert first_block is not None
        print_commands(first_block.spec, None, first_seed, command, folder, append=options.appends_parameters)
        return
    blocks = _train_blocks(search, record, options, folder, first_seed)
    if not options.quiet:
        click.echo("\n".join([*text.search_result_lines(search.start, blocks), f"Decisions: {folder}"]))
        print_analyze_command(record.experiment, record.location)
    if not leader.any_setting_has_result([t for block in blocks for t in block.trained]):
        sys.exit(1)


def _open_search(
    spec: StudySpec, command: Sequence[str], budget: int, options: LaunchOptions, rules: Sequence[Path]
) -> tuple[Search, SearchRecord]:
    starting_study = _study_to_search(spec, command, append=options.appends_parameters)
    uri, loaded = options.tracking_uri, load_rules(settings=find_settings(Path.cwd()), directories=rules)
    record = SearchRecord(
        options.experiment or spec.study,
        parse_tracking_uri(uri) if uri else default_location_for_writing(),
        starting_study,
        command,
        options.appends_parameters,
        loaded,
    )
    gpu_slots = make_slots(find_gpus(), options.gpus_per_trial, options.parallel) if options.on == "local" else ()
    search = Search(starting_study, budget, record, parallel=len(gpu_slots) or options.parallel or 1)
    min_trials = (BLOCKS_BEFORE_ANALYSIS + 1) * search.trials_per_block
    if search.trials < min_trials:
        at_a_time = f" at {search.parallel} trials at a time" if search.parallel > 1 else ""
        raise AdvisorError(
            f"{search.trials} trials are too few to decide anything after the first block; pass --trials {min_trials} or more"
            f"{at_a_time}, or train the study with `advisor run`"
        )
    return search, record


def _train_blocks(search: Search, record: SearchRecord, options: LaunchOptions, folder: Path, first_seed: int) -> list[Block]:
    name = record.experiment
    say = (lambda _: None) if options.quiet else click.echo
    with notifier_for_command(options.notify, name, quiet=options.quiet) as notifier:
        launcher = Launcher(
            record.command_words, record.location, name, options, compares_earlier_rounds=True, notifier=notifier
        )
        blocks = SearchLoop(search, record, launcher, folder, first_seed, say).run()
        if notifier is not None:
            notifier.send(Notification("ended", name, None, None, " ".join(text.search_result_lines(search.start, blocks))))
    return blocks


def _study_to_search(spec: StudySpec, command: Sequence[str], *, append: bool) -> StudySpec:
    check_command(spec, command, append=append)
    study = f"study {spec.study!r}"
    if spec.probe is not None or spec.settings:
        raise AdvisorError(f"{study} lists fixed trials instead of a search space; train it with `advisor run`")
    if not any(p.numeric for p in spec.searched.values()):
        raise AdvisorError(f"{study} searches no numeric range that the analysis could correct; train it with `advisor run`")
    if shared_learning_rate(spec) is not None:
        raise AdvisorError(
            f"{study} searches several optimizers with one learning rate, which suits none of them; write one study for each "
            "with `advisor init --compare`"
        )
    if append and not command_passes_seed(spec, command):
        raise AdvisorError(
            "the search ends with repeats of the best setting, and the command does not pass their seeds; add --seed {seed}, "
            "or pass --no-args if the training reads ADVISOR_SEED from its environment"
        )
    return spec.model_copy(update={"sampler": Sampler(seed=spec.sampler.seed), "seeds": None})

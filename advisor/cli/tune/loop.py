"""Trains one block of trials after another: reads the results, asks for the next block, writes its study file and launches it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from advisor.cli.launching import Launcher
from advisor.cli.tune import files, text
from advisor.cli.tune.files import BlockFile
from advisor.cli.tune.record import SearchRecord
from advisor.execution import Summary
from advisor.execution.job import SEEDS_PER_ROUND
from advisor.execution.ledger.record import retry_while_unreachable
from advisor.execution.worker import MAX_FIRST_FAILURES
from advisor.model.errors import TrialsFailed
from advisor.planning.blocks import Block, Search

Result = TypeVar("Result")

_STORE_POLL_S = 5.0


@dataclass
class SearchLoop:
    """A search that trains one block of trials after another and stores the blocks' study files in `folder`."""

    search: Search
    record: SearchRecord
    launcher: Launcher
    folder: Path
    first_seed: int
    print_line: Callable[[str], None]
    _failed_trial_count: int = 0
    """Number of trials in the latest blocks in which every trial failed, or 0 if a trial of the latest block succeeded."""

    def run(self) -> list[Block]:
        """Train blocks until the budget of trials is spent. An interrupted search resumes after its last decision."""
        block_files = files.read_block_files(self.folder)
        blocks = self.record.blocks(block_files) if block_files else []
        if len(blocks) == 1 and not blocks[0].trained:
            # Without a trained trial, decide the first block again, because the user may have edited the study.
            block_files, blocks = [], []
        if not block_files:
            self.record.check_experiment_is_empty()
        self.record.check_runs_of_blocks(block_files, blocks)
        if block_files:
            self.print_line(f"Resuming at block {len(block_files)} of {self.folder}.")
            block_files = self._resume_search(block_files)
            blocks = self._repeat_until_store_answers(partial(self.record.blocks, block_files))
        while (decided := self._repeat_until_store_answers(partial(self._decide_next_block, blocks))) is not None:
            block_files.append(self._write_block(decided, block_files, blocks))
            trained = [t for b in blocks for t in b.trained]
            self.print_line(text.block_decision_line(len(block_files), block_files[-1].block, trained))
            self._train_block(block_files[-1], len(block_files))
            blocks = self._repeat_until_store_answers(partial(self.record.blocks, block_files))
        return blocks

    def _repeat_until_store_answers(self, call: Callable[[], Result]) -> Result:
        """Repeat the call until the store answers. Each call of a search is safe to repeat."""
        waiting_message = "The store does not answer; the search continues when the store answers again."
        return retry_while_unreachable(call, on_failure=lambda: self.print_line(waiting_message))

    def _resume_search(self, block_files: list[BlockFile]) -> list[BlockFile]:
        """Train the rest of the last block or, after a correction of the objective, the rest of all blocks."""
        start, objective = self.search.start, block_files[0].spec.objective
        objective_correctable = not self.record.has_metric_values(objective.metric)
        files.check_same_starting_study(self.folder, block_files, start, correctable=objective_correctable)
        objective_corrected = objective != start.objective
        if objective_corrected:
            block_files = files.correct_objective_in_files(block_files, start)
        for number, file in enumerate(block_files, 1):
            if objective_corrected or number == len(block_files):
                self._train_block(file, number)
        return block_files

    def _decide_next_block(self, blocks: list[Block]) -> Block | None:
        self.record.declined_changes.clear()
        return self.search.next_block(blocks)

    def _write_block(self, decided: Block, block_files: list[BlockFile], blocks: list[Block]) -> BlockFile:
        start, number = self.search.start, len(block_files) + 1
        previous_space = self.search.search_space(blocks) if blocks else None
        block = text.with_goal_and_reason(
            decided,
            previous_space,
            study=self.record.experiment if number == 1 else f"{self.record.experiment}-block-{number:02}",
            parent=block_files[-1].spec.study if block_files else start.parent,
            round=start.round + number - 1,
        )
        declined_changes = tuple(dict.fromkeys(self.record.declined_changes)) if decided.kind == "adaptive" else ()
        block = Block(block.kind, block.spec.model_copy(update={"notes": (*block.spec.notes, *declined_changes)}))
        return files.write_block_file(self.folder, number, block, text.block_subject(decided, previous_space))

    def _train_block(self, file: BlockFile, number: int) -> None:
        seed, waits = self.first_seed + SEEDS_PER_ROUND * (number - 1), False
        launcher = self.launcher
        if number > 1:
            launcher = replace(launcher, options=replace(launcher.options, keep_going=True), warns_about_command=False)
        while True:
            _, summary = self._repeat_until_store_answers(partial(launcher.train, file.spec, None, seed, file.output_folder))
            remaining_count = summary.total - len(summary.outcomes)
            if not remaining_count:
                self._stop_if_all_fail(summary, file, number)
                return
            if not waits:
                self.print_line(f"Waiting for {remaining_count} trials of block {number} that another launcher trains.")
            waits, launcher = (True, replace(launcher, retry="none"))  # do not restart trials that fail during the wait
            time.sleep(_STORE_POLL_S)

    def _stop_if_all_fail(self, summary: Summary, file: BlockFile, number: int) -> None:
        """Raise TrialsFailed if the last `MAX_FIRST_FAILURES` or more trials failed, because further trials would probably fail."""
        self._failed_trial_count = self._failed_trial_count + summary.total if summary.failed == summary.total else 0
        if self.launcher.options.keep_going or number == 1 or self._failed_trial_count < MAX_FIRST_FAILURES:
            return
        last_error = summary.outcomes[max(summary.outcomes)].error
        raise TrialsFailed(
            f"the last {self._failed_trial_count} trials, up to block {number}, all failed, the last with: {last_error}; their "
            f"output is in {file.output_folder}; fix the command and run it again: trials that logged nothing are started "
            "again; --keep-going continues in spite of failures"
        )

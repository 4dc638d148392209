"""The rule `multi-host`; its page is the docstring of the class."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from advisor.computed.pipeline import norms, ranks
from advisor.computed.pipeline.ranks import Ranks
from advisor.engine.rule import Rule
from advisor.model.change import Advise
from advisor.model.evidence import FigureEvidence
from advisor.model.finding import Finding, Goal, MissingData, Severity
from advisor.model.study import Study, Trial


@dataclass(frozen=True)
class _Fault:
    shows: Callable[[Trial, Ranks], bool]
    """Whether a trial shows it."""
    fact: str
    """What the ranks noted that shows it; the finding's subject."""
    what: str
    """What ranks do, after "4 of 4 ranks" or "each rank"."""
    advice: str
    severity: Severity
    confidence: float


class MultiHost(Rule):
    """Ranks of a distributed training get into each other's way, or each go their own way.

    ## What it looks at
    What each rank noted of itself, in each trial that was trained by two or more:
    - do several log, or write checkpoints? (Those of sharded models are written by all ranks, and are left out.)
    - does batch norm keep running statistics of each rank's own batches?
    - does an epoch go through the data once on all ranks together, or once on every rank?

    Whether ranks draw the same examples or start from different weights is the rule `seeds`.

    ## Why it matters
    Several writers of one file can spoil it, and several loggers leave several truths of one training. Running statistics that
    were not combined make an evaluation, or a checkpoint, depend on which rank it came from. A rank that reads all the data reads
    far more than it needs, and an epoch is not what it seems.

    ## What to do
    Log and save on rank 0 only; combine batch norm's statistics over ranks before each evaluation and checkpoint; give each rank
    its share of the data.

    ## How sure
    These are noted facts: nothing is estimated, and chance raises no finding. Less sure is what the last one means (confidence
    0.6): ranks that work on one batch together (tensor or pipeline parallelism) rightly read the same data, and files may have been
    shared out before the training.

    Example: "In 8 of 8 trials, 4 of 4 ranks write checkpoints."
    """

    playbook: ClassVar[str] = "Considerations for multi-host pipelines"
    goal: ClassVar[Goal] = "pipeline"

    def check(self, study: Study) -> Iterator[Finding]:
        """One finding per fault."""
        trained = [(t, r) for t in study.trials if (r := ranks.read(t)) is not None]
        if not trained and not any(ranks.hooked(t) for t in study.trials):
            raise MissingData("no trial noted what its ranks do; make the hook on every rank")
        heard = [(t, r) for t, r in trained if any(len(r.values(name)) > 1 for name in r.facts)]
        if trained and not heard:
            raise MissingData("only rank 0 told of itself; make the TuningLogger on every rank")
        for fault in _FAULTS:
            shown = [t for t, r in heard if fault.shows(t, r)]
            if shown:
                yield self._report(fault, shown, heard)

    def _report(self, fault: _Fault, shown: list[Trial], heard: list[tuple[Trial, Ranks]]) -> Finding:
        first = next(r for t, r in heard if t is shown[0])
        doing = first.count(fault.fact)
        who = f"{doing} of {first.world_size} ranks" if doing else "each rank"
        rows = (
            ("trials with several ranks", str(len(heard))),
            ("ranks", str(first.world_size)),
            ("hosts", str(len(set(map(str, first.values("host")))) or "unknown")),
            ("parallel", first.parallel),
            (f"{fault.fact}, as ranks noted it", ", ".join(map(str, first.values(fault.fact)[:8])) or "not noted"),
        )
        return self.finding(
            f"In {len(shown)} of {len(heard)} trials, {who} {fault.what}.",
            action=fault.advice,
            severity=fault.severity,
            confidence=fault.confidence,
            subject=fault.fact,
            trials=shown,
            evidence=(FigureEvidence(rows=rows),),
            changes=(Advise(text=fault.advice),),
        )


def _several_save(_: Trial, told: Ranks) -> bool:
    return told.count("checkpoints") > 1 and told.parallel != "fsdp"


def _several_log(_: Trial, told: Ranks) -> bool:
    return told.count("logs") > 1


def _own_statistics(trial: Trial, told: Ranks) -> bool:
    found = norms.batch_norm(trial)
    moving = found is None or "batch_norm" not in trial.facts or (found.layers > 0 and found.running)
    return moving and False in told.values("sync_batch_norm")


def _all_data(trial: Trial, told: Ranks) -> bool:
    return ranks.shares_data(trial, told) is False


_FAULTS = (
    _Fault(_several_save, "checkpoints", "write checkpoints", "Write checkpoints on rank 0 only.", "warning", 0.95),
    _Fault(
        _own_statistics,
        "sync_batch_norm",
        "keeps batch norm statistics of its own",
        "Combine batch norm's running statistics over ranks before each evaluation and checkpoint, or use SyncBatchNorm.",
        "note",
        0.9,
    ),
    _Fault(_several_log, "logs", "log", "Log on rank 0 only.", "note", 0.95),
    _Fault(
        _all_data,
        "shard_examples",
        "goes through all of the training data in an epoch",
        "Give each rank its share of the data, as a DistributedSampler does.",
        "note",
        0.6,
    ),
)

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from advisor.computed.pipeline import ranks
from advisor.computed.pipeline.ranks import Ranks
from advisor.engine.rule import Rule
from advisor.model.evidence import table
from advisor.model.finding import Finding, MissingData, Severity
from advisor.model.message import say
from advisor.model.study import Study, Trial
from advisor_rules.pipeline._norms import batch_norm


@dataclass(frozen=True)
class _RankFault:
    is_shown_by: Callable[[Trial, Ranks], bool]
    fact_name: str
    """Name of the logged fact that shows the fault; it is the subject of the finding."""
    problem: str
    """Verb phrase of the message, which follows "4 of 4 ranks" or "each rank"."""
    advice: str
    severity: Severity
    confidence: float


class MultiHost(Rule):
    """Ranks of a distributed training disturb each other, or repeat the same work.

    ## What it looks at
    The rule reads the facts that each rank logged, in each trial with two or more ranks:

    - Do several ranks log, or write checkpoints? (All ranks write checkpoints of sharded models, so these are left out.)
    - Does batch norm keep running statistics of each rank's own batches?
    - Do all ranks together make one pass over the data per epoch, or does each rank make its own?

    The rule `seeds` covers ranks that draw the same examples or start from different weights.

    ## Why it matters
    Several writers can corrupt a file, and several loggers give contradictory records of one training. With separate running
    statistics, an evaluation or checkpoint depends on the rank that made it. If every rank reads all the data, an epoch is
    longer than it seems.

    ## What to do
    Log and save on rank 0 only. Combine batch norm's statistics over ranks before each evaluation and each checkpoint. Give
    each rank a share of the data.

    ## How sure
    The rule reads only logged facts, so no finding is due to chance. The finding that every rank reads all the data has
    confidence 0.6. Ranks that share one batch (tensor or pipeline parallelism) correctly read the same data, and files may have
    been split before the training.
    """

    playbook = "Considerations for multi-host pipelines"
    goal = "pipeline"

    def check(self, study: Study) -> Iterator[Finding]:
        rank_facts = [(t, r) for t in study.trials if (r := ranks.read_ranks(t)) is not None]
        if not rank_facts and not any(ranks.is_logged_by_adapter(t) for t in study.trials):
            raise MissingData("no trial logged facts of its ranks; create the hook on every rank", needs="facts")
        with_facts = [(t, r) for t, r in rank_facts if any(len(r.values(name)) > 1 for name in r.facts)]
        if rank_facts and not with_facts:
            raise MissingData("only rank 0 logged its facts; create the TuningLogger on every rank")
        for fault in _RANK_FAULTS:
            faulty_trials = [(t, r) for t, r in with_facts if fault.is_shown_by(t, r)]
            if faulty_trials:
                yield self._build_finding(fault, faulty_trials, len(with_facts))

    def _build_finding(self, fault: _RankFault, faulty: list[tuple[Trial, Ranks]], judged_count: int) -> Finding:
        _, world = faulty[0]
        rank_count = world.count(fault.fact_name)
        ranks_text = say("{n} of {world} ranks", n=rank_count, world=world.world_size) if rank_count else "each rank"
        text = "In {n} of {trials} trials, {ranks} {problem}."
        return self.finding(
            say(text, n=len(faulty), trials=judged_count, ranks=ranks_text, problem=fault.problem),
            action=fault.advice,
            severity=fault.severity,
            confidence=fault.confidence,
            subject=fault.fact_name,
            trials=[t for t, _ in faulty],
            evidence=table(
                ("trials with several ranks", judged_count),
                ("ranks", world.world_size),
                ("hosts", len(set(map(str, world.values("host")))) or "unknown"),
                ("parallelism", world.parallelism),
                (f"{fault.fact_name} by rank", world.values_text(fault.fact_name)),
            ),
        )


def _keeps_rank_statistics(trial: Trial, world: Ranks) -> bool:
    layers = batch_norm(trial)
    keeps = layers is None or "batch_norm" not in trial.facts or (layers.layer_count > 0 and layers.keeps_running_statistics)
    return keeps and False in world.values("sync_batch_norm")


_RANK_FAULTS = (
    _RankFault(
        lambda _, world: world.count("checkpoints") > 1 and world.parallelism != "fsdp",
        "checkpoints",
        "write checkpoints",
        "Write checkpoints on rank 0 only.",
        "warning",
        0.95,
    ),
    _RankFault(
        _keeps_rank_statistics,
        "sync_batch_norm",
        "keeps its own batch norm statistics",
        "Combine batch norm's running statistics over ranks before each evaluation and checkpoint, or use SyncBatchNorm.",
        "note",
        0.9,
    ),
    _RankFault(lambda _, world: world.count("logs") > 1, "logs", "log", "Log on rank 0 only.", "note", 0.95),
    _RankFault(
        lambda trial, world: ranks.do_ranks_share_data(trial, world) is False,
        "shard_examples",
        "reads all of the training data in an epoch",
        "Give each rank its share of the data, as a DistributedSampler does.",
        "note",
        0.6,
    ),
)

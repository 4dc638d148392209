from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from advisor.computed.pipeline import ranks
from advisor.computed.space import settings
from advisor.engine.rule import Count, Rule, Share
from advisor.model.evidence import TableRow, table
from advisor.model.finding import Finding, MissingData, Severity
from advisor.model.message import Count as Quantity, Message, list_message, say
from advisor.model.study import Study, Trial

_SAME_EXAMPLES_FAULT = (
    "every rank shuffles all of the data with the same seed and draws the same examples",
    "Share the data among ranks, as a DistributedSampler does, or shuffle with a different seed on each rank.",
)
_OVERLAPPING_DATA_FAULT = (
    "ranks share the data with different seeds, so an epoch has some examples twice and others never",
    "Give the sampler the same seed on every rank.",
)
_DIFFERENT_WEIGHTS_FAULT = (
    "ranks have different seeds, and nothing shows that they start from the same weights",
    "Set the same seed on every rank before you create the model.",
)


class Seeds(Rule):
    """Seeds are missing in some trials, identical in every trial, or wrong across ranks.

    ## What it looks at
    - Did only some trials log a seed, as a tag of the training hook or as a parameter named seed? If no trial did, the report
      lists the seed among the data to log.
    - Do (nearly) all trials have the same seed, although no setting was repeated with another seed?
    - In distributed training, do ranks that each draw from all of the data shuffle it with the same seed? Do ranks that share
      the data shuffle it with different seeds? Do ranks have different seeds although nothing, such as DistributedDataParallel,
      copies the weights of rank 0 to the other ranks?

    ## Why it matters
    Without its seed, a trial cannot be repeated. One seed for all trials makes comparison easier and may be intended. However,
    the best trial may be the one that suits this seed, and the effect of another seed is unknown. Repeats with the same seed
    show nothing about other seeds. Ranks that draw the same examples repeat the same work.

    ## What to do
    Give each trial its own seed and log it. Use the same seed for the weights on every rank. For shuffling, use the same seed
    if a sampler splits the data among ranks, and different seeds otherwise.

    ## How sure
    The seeds are logged facts, not estimates. In 3 or more trials, the same seed in all of them is hardly a coincidence. In
    simulated studies of 3 to 40 trials with random seeds, the rule fired in 0.03 % of studies with 10 possible seeds, and never
    with 1,000. If the trials did not log whether ranks share the data, findings about seeds of ranks have confidence 0.6.
    """

    playbook = "Considerations for multi-host pipelines"
    goal = "pipeline"

    fewest: Count = 3
    """Minimum number of trials with the same seed at which the seed counts as deliberate."""
    most: Share = 0.9
    """Minimum share of trials with the same seed, or with any seed, at which all trials count as having it. Our choice."""

    def check(self, study: Study) -> Iterator[Finding]:
        ended_trials = [t for t in study.trials if study.ended[t.index]]
        if not ended_trials:
            raise MissingData("no trial has ended yet", needs="trials", at_least=1)
        rank_findings = list(self._check_seeds_of_ranks(ended_trials))
        yield from rank_findings
        without_seed = [t for t in ended_trials if t.seed is None]
        if len(without_seed) == len(ended_trials) and not rank_findings:
            reason = "no trial logged its seed, so none can be repeated exactly; log it as the parameter seed"
            raise MissingData(reason, needs="seeds")
        if len(ended_trials) > len(without_seed) > (1 - self.most) * len(ended_trials):
            text = "{n} of {trials} logged no seed, so they cannot be repeated exactly."
            trials = Quantity(len(ended_trials), "trial")
            advice = "Set a seed in each trial and log it as the parameter seed."
            yield self._build_finding(say(text, n=len(without_seed), trials=trials), advice, "note", without_seed)
        if len(without_seed) < len(ended_trials):
            yield from self._check_seeds_of_trials(study, [t for t in ended_trials if t.seed is not None])

    def _check_seeds_of_trials(self, study: Study, seeded: Sequence[Trial]) -> Iterator[Finding]:
        seed, count = Counter(t.seed for t in seeded).most_common(1)[0]
        groups = [g for g in settings.read_settings(study).trials if len(g) > 1 and any(t.params for t in g)]
        if count < max(self.fewest, self.most * len(seeded)) or any(len({t.seed for t in g}) > 1 for g in groups):
            return
        repeats = [t for g in groups for t in g]
        shared = say("{n} of {trials} have the seed {seed}.", n=count, trials=Quantity(len(seeded), "trial"), seed=str(seed))
        if 2 * len(repeats) > len(seeded):
            text = "{shared} The {n} trials that repeat a setting do not show the effect of the seed."
            advice = "Use another seed for each repeat of a setting."
            yield self._build_finding(say(text, shared=shared, n=len(repeats)), advice, "warning", repeats)
        else:
            message = say("{shared} The effect of the seed on the order of the trials is unknown.", shared=shared)
            advice = "Give each trial its own seed, or repeat the best few settings with several seeds."
            yield self._build_finding(message, advice, "note", [t for t in seeded if t.seed == seed])

    def _check_seeds_of_ranks(self, ended_trials: Sequence[Trial]) -> Iterator[Finding]:
        rank_facts = [(t, r) for t in ended_trials if (r := ranks.read_ranks(t)) is not None]
        shares_data = {t.id: ranks.does_sampler_split_data(t) or ranks.do_ranks_share_data(t, r) for t, r in rank_facts}
        same_examples = [t for t, r in rank_facts if r.has_common_value("loader_seed") and not shares_data[t.id]]
        overlapping = [t for t, r in rank_facts if r.has_different_values("loader_seed") and ranks.does_sampler_split_data(t)]
        different_weights = [t for t, r in rank_facts if r.has_different_values("seed") and r.parallelism != "ddp"]
        is_certain = bool(same_examples) and shares_data[same_examples[0].id] is False
        faults: tuple[tuple[list[Trial], Severity, float, tuple[str, str]], ...] = (
            (same_examples, "warning", 0.9 if is_certain else 0.6, _SAME_EXAMPLES_FAULT),
            (overlapping, "warning", 0.9, _OVERLAPPING_DATA_FAULT),
            (different_weights, "note", 0.6, _DIFFERENT_WEIGHTS_FAULT),
        )
        for trials, severity, confidence, (problem, advice) in faults:
            if trials:
                message = say("In {n} of {worlds} trials, {problem}.", n=len(trials), worlds=len(rank_facts), problem=problem)
                yield self._build_finding(message, advice, severity, trials, confidence)

    def _build_finding(
        self, message: Message, advice: str, severity: Severity, trials: Sequence[Trial], confidence: float = 0.95
    ) -> Finding:
        seed_counts = Counter("none" if t.seed is None else str(t.seed) for t in trials).most_common(5)
        seeds = list_message([say("{seed} ({n} times)", seed=seed, n=n) for seed, n in seed_counts], 5)
        rows: list[TableRow] = [("seeds of these trials", seeds)]
        world = ranks.read_ranks(trials[0])
        if world is not None:
            rows += [(f"{name} by rank, first trial", world.values_text(name)) for name in ("seed", "loader_seed")]
        return self.finding(
            message,
            action=advice,
            severity=severity,
            confidence=confidence,
            subject="seed",
            trials=trials,
            evidence=table(*rows),
        )

"""Seeded families of studies in which nothing is wrong: a finding about them is a false alarm.

Each family names the rules for which it is a null, and which of their verdicts are wrong. For a rule that promises how often it is
quiet by chance, the wrong verdict is `quiet`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from null_policies import healthy_policies, remembers
from null_studies import (
    Make,
    at_the_limit,
    batches,
    coarse,
    dropout_helps,
    equal_trials,
    equal_values,
    healthy,
    learned_nothing,
    norms,
    overfitting,
    repeats,
    results,
    sampled,
    unfinished,
)

from advisor.model.finding import Verdict

Wrong: TypeAlias = Callable[[Verdict], bool]


@dataclass(frozen=True)
class Null:
    """A family of studies."""

    name: str
    make: Make
    """Returns a study, and {rule: True} for each rule whose finding happens to be true of this study."""
    wrong: Mapping[str, Wrong]
    """For each rule for which this family is a null, a function that returns whether a verdict is wrong."""


def fired(verdict: Verdict) -> bool:
    return verdict.status == "fired"


def quiet(verdict: Verdict) -> bool:
    """Whether the rule could judge and found nothing."""
    return verdict.status == "quiet"


def names_subject(verdict: Verdict) -> bool:
    """Whether a finding names a hyperparameter."""
    return any(f.subject is not None for f in verdict.findings)


def message_contains(*texts: str) -> Wrong:
    """Return a function that checks whether a finding's message contains one of the texts."""
    return lambda verdict: any(text in f.message for text in texts for f in verdict.findings)


def lacks_caveat(verdict: Verdict) -> bool:
    """Whether a finding does not mention that its evidence may be noise."""
    return any("may be noise" not in f.message for f in verdict.findings)


def _all(rules: str, **others: Wrong) -> Mapping[str, Wrong]:
    return {**dict.fromkeys(rules.split(), fired), **{k.replace("_", "-"): v for k, v in others.items()}}


_OF_SPACE = "space-boundary space-boundary-infeasible stability-edge space-undersampled space-shrink space-scale"
_OF_RESULTS = f"{_OF_SPACE} unfair-comparison"
_UNSTABLE = "stability-early stability-mid stability-spikes residual-norm clip-insufficient"
_OF_CURVES = f"{_UNSTABLE} curve-overfitting curve-train-loss-rises curve-periodic ckpt-best-lost schedule-ad-hoc"
_COMPUTE = {"steps-compute-bound": message_contains("Training is compute-bound")}
_NOT_COMPUTE = {"steps-compute-bound": message_contains("not compute-bound")}

_OF_POLICIES = "groups-without-advantage entropy-collapse policy-jumps completions-truncated"
_NO_ANSWER = {"scientific-effect": message_contains("is better than")}

FAMILIES: tuple[Null, ...] = (
    Null("noise, 5 trials", results(5), _all(_OF_RESULTS)),
    Null("noise, 24 trials", results(24), _all(f"{_OF_RESULTS} space-interaction", space_insensitive=lacks_caveat)),
    Null("noise, 200 trials", results(200), _all(_OF_RESULTS)),
    Null("ties, 24 trials", results(24, digits=0), _all(_OF_RESULTS)),
    Null("failed at random, 24", results(24, failed=0.3), _all(_OF_RESULTS, space_infeasible=names_subject)),
    Null("failed at random, 100", results(100, failed=0.2), _all(_OF_RESULTS, space_infeasible=names_subject)),
    Null("sampler that learns, 24", results(24, adaptive=True), _all(_OF_SPACE)),
    Null("noisy cliff, 12", results(12, cliff=True), _all("space-boundary unfair-comparison")),
    Null("noisy cliff, 24", results(24, cliff=True), _all("space-boundary unfair-comparison space-interaction")),
    Null(
        "best inside, 24",
        results(24, bowl=True),
        _all("space-boundary space-interaction unfair-comparison space-scale"),
    ),
    Null("equal settings, repeated", repeats(5, 4), _all("space-boundary", adopt=quiet)),
    Null("tuning goes on, 1 axis", unfinished(1, 16), _all("tuning-saturated")),
    Null("tuning goes on, 3 axes", unfinished(3, 30), _all("tuning-saturated")),
    *(
        Null(f"settles, {kind} noise", healthy(kind), _all(_OF_CURVES))
        for kind in ("white", "0.5", "0.8", "0.9", "heavy")
    ),
    *(
        Null(f"falls, {kind} noise", healthy(kind, shape="falls"), _all(_OF_CURVES))
        for kind in ("white", "0.5", "heavy")
    ),
    *(
        Null(
            f"settles at a constant rate, {kind} noise",
            healthy(kind, schedule="constant"),
            {**_all("curve-still-improving"), **_COMPUTE},
        )
        for kind in ("white", "0.5", "0.8", "0.9", "heavy")
    ),
    *(
        Null(
            f"falls at a constant rate, {kind} noise",
            healthy(kind, shape="falls", schedule="constant"),
            {**_all("curve-saturated"), **_NOT_COMPUTE},
        )
        for kind in ("white", "0.5", "heavy")
    ),
    *(
        Null(
            f"flat at a constant rate, {kind} noise",
            healthy(kind, shape="flat", schedule="constant"),
            _all("curve-still-improving"),
        )
        for kind in ("white", "0.5", "0.8")
    ),
    *(
        Null(
            f"flat, {kind} noise",
            healthy(kind, shape="flat", trials=(3, 5, 12)),
            _all("step-position ckpt-best-lost curve-overfitting curve-periodic stability-early"),
        )
        for kind in ("white", "0.5", "0.8")
    ),
    Null("settles, trials apart", healthy("white", points=(50,), trials=(2, 5, 20)), _all("curve-step-variance")),
    *(
        Null(f"{kind} norms", norms(kind), _all("stability-spikes clip-insufficient"))
        for kind in ("log-normal", "log-laplace", "log-t5")
    ),
    Null("overfits at random", overfitting, _all("curve-best-is-regularised-by-accident curve-train-loss-rises")),
    Null("learned nothing", learned_nothing, {"curve-worse-than-chance": quiet}),
    Null("equal trials", equal_trials, {"eval-size": quiet}),
    Null("coarse results", coarse, _all("params-ignored")),
    Null("random sample", sampled, _all("eval-sample-skew")),
    *(
        Null(
            f"at the limit{', bursts' * bursts}, {trials} trial{'s' * (trials > 1)}",
            at_the_limit(trials, bursts=bursts),
            _all("input-bound gpu-underused clip-aggressive" + " host-sync" * (not bursts)),
        )
        for bursts in (False, True)
        for trials in (1, 4)
    ),
    *(Null(f"equal values, {n} trials", equal_values(n), _NO_ANSWER) for n in (16, 24, 48)),
    Null("equal values, own rates, 24 trials", equal_values(24, shifted=True), _NO_ANSWER),
    Null("random search, 24 trials", results(24, bowl=True), _all("adaptive-search")),
    Null("dropout helps, 20 trials", dropout_helps, _all("regulariser-floor")),
    Null("policies that learn", healthy_policies, _all(_OF_POLICIES)),
    Null("nothing is forgotten", remembers, _all("forgetting")),
    Null("batch sizes alike", batches, _all("batch-steps", batch_throughput=message_contains("stops", "No doubling"))),
)

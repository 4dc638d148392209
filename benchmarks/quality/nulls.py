"""Seeded families of studies in which nothing is wrong: any finding about them is a false alarm.

Each family names the rules for which its studies contain no effect, and which verdicts of these rules are wrong. If a rule promises
how often it is quiet by chance, a verdict is wrong if `is_quiet` returns True.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from null_attention import logits_at_a_limit
from null_policies import healthy_policies, nothing_forgotten
from null_studies import (
    Make,
    at_the_limit,
    batch_sizes,
    coarse_error_rates,
    dropout_helps,
    equal_trials,
    equal_values,
    gradient_norms,
    healthy_curves,
    learned_nothing,
    noise_results,
    repeated_settings,
    sampled_evaluations,
    some_overfit,
    unfinished,
)

from advisor.model.finding import Verdict

Wrong: TypeAlias = Callable[[Verdict], bool]


@dataclass(frozen=True)
class NullFamily:
    """A family of generated studies without the effects that certain rules look for."""

    name: str
    make: Make
    """Returns a study, and {rule: True} for each rule whose finding happens to be true for this study."""
    wrong: Mapping[str, Wrong]
    """For each rule whose effect this family lacks, a function that returns whether a verdict is wrong."""


def has_fired(verdict: Verdict) -> bool:
    return verdict.status == "fired"


def is_quiet(verdict: Verdict) -> bool:
    """Return whether the rule had enough data to judge and found nothing."""
    return verdict.status == "quiet"


def names_subject(verdict: Verdict) -> bool:
    """Return whether any finding names a hyperparameter."""
    return any(f.subject is not None for f in verdict.findings)


def message_contains(*texts: str) -> Wrong:
    """Return a function that checks whether any finding's message contains one of the texts."""
    return lambda verdict: any(text in f.message for text in texts for f in verdict.findings)


def lacks_caveat(verdict: Verdict) -> bool:
    """Return whether any finding fails to mention that its evidence may be noise."""
    return any("may be noise" not in f.message for f in verdict.findings)


def _all(rules: str, **others: Wrong) -> Mapping[str, Wrong]:
    return {**dict.fromkeys(rules.split(), has_fired), **{k.replace("_", "-"): v for k, v in others.items()}}


_OF_SPACE = "space-boundary space-boundary-infeasible stability-edge space-undersampled space-shrink space-scale"
_OF_RESULTS = f"{_OF_SPACE} unfair-comparison"
_UNSTABLE = "stability-early stability-mid stability-spikes residual-norm clip-insufficient"
_OF_CURVES = f"{_UNSTABLE} curve-overfitting curve-train-loss-rises curve-periodic ckpt-best-lost schedule-ad-hoc"
_COMPUTE = {"steps-compute-bound": message_contains("Training is compute-bound")}
_NOT_COMPUTE = {"steps-compute-bound": message_contains("not compute-bound")}

_OF_POLICIES = "groups-without-advantage entropy-collapse policy-jumps completions-truncated rollout-mismatch"
_NO_ANSWER = {"scientific-effect": message_contains("is better than")}

FAMILIES: tuple[NullFamily, ...] = (
    NullFamily("noise, 5 trials", noise_results(5), _all(_OF_RESULTS)),
    NullFamily("noise, 24 trials", noise_results(24), _all(f"{_OF_RESULTS} space-interaction", space_insensitive=lacks_caveat)),
    NullFamily("noise, 200 trials", noise_results(200), _all(_OF_RESULTS)),
    NullFamily("ties, 24 trials", noise_results(24, digits=0), _all(_OF_RESULTS)),
    NullFamily("failed at random, 24", noise_results(24, failed=0.3), _all(_OF_RESULTS, space_infeasible=names_subject)),
    NullFamily("failed at random, 100", noise_results(100, failed=0.2), _all(_OF_RESULTS, space_infeasible=names_subject)),
    NullFamily("sampler that learns, 24", noise_results(24, adaptive=True), _all(_OF_SPACE)),
    NullFamily("noisy cliff, 12", noise_results(12, cliff=True), _all("space-boundary unfair-comparison")),
    NullFamily("noisy cliff, 24", noise_results(24, cliff=True), _all("space-boundary unfair-comparison space-interaction")),
    NullFamily(
        "best inside, 24", noise_results(24, bowl=True), _all("space-boundary space-interaction unfair-comparison space-scale")
    ),
    NullFamily("equal settings, repeated", repeated_settings(5, 4), _all("space-boundary", adopt=is_quiet)),
    NullFamily("tuning goes on, 1 axis", unfinished(1, 16), _all("tuning-saturated")),
    NullFamily("tuning goes on, 3 axes", unfinished(3, 30), _all("tuning-saturated")),
    *(
        NullFamily(f"settles, {kind} noise", healthy_curves(kind), _all(_OF_CURVES))
        for kind in ("white", "0.5", "0.8", "0.9", "heavy")
    ),
    *(
        NullFamily(f"falls, {kind} noise", healthy_curves(kind, shape="falls"), _all(_OF_CURVES))
        for kind in ("white", "0.5", "heavy")
    ),
    *(
        NullFamily(
            f"settles at a constant rate, {kind} noise",
            healthy_curves(kind, schedule="constant"),
            {**_all("curve-still-improving"), **_COMPUTE},
        )
        for kind in ("white", "0.5", "0.8", "0.9", "heavy")
    ),
    *(
        NullFamily(
            f"falls at a constant rate, {kind} noise",
            healthy_curves(kind, shape="falls", schedule="constant"),
            {**_all("curve-saturated"), **_NOT_COMPUTE},
        )
        for kind in ("white", "0.5", "heavy")
    ),
    *(
        NullFamily(
            f"flat at a constant rate, {kind} noise",
            healthy_curves(kind, shape="flat", schedule="constant"),
            _all("curve-still-improving"),
        )
        for kind in ("white", "0.5", "0.8")
    ),
    *(
        NullFamily(
            f"flat, {kind} noise",
            healthy_curves(kind, shape="flat", trials=(3, 5, 12)),
            _all("step-position ckpt-best-lost curve-overfitting curve-periodic stability-early"),
        )
        for kind in ("white", "0.5", "0.8")
    ),
    *(
        NullFamily(
            f"{shape} over {n} epochs, {kind} noise", healthy_curves(kind, shape=shape, epochs=n), _all("curve-staircase")
        )
        for shape, n, kind in (
            ("settles", 3, "white"),
            ("falls", 8, "white"),
            ("flat", 5, "heavy"),
            ("flat", 8, "0.5"),
            ("flat", 8, "0.8"),
        )
    ),
    NullFamily("settles, trials apart", healthy_curves("white", points=(50,), trials=(2, 5, 20)), _all("curve-step-variance")),
    *(
        NullFamily(f"{kind} norms", gradient_norms(kind), _all("stability-spikes clip-insufficient"))
        for kind in ("log-normal", "log-laplace", "log-t5")
    ),
    NullFamily("overfits at random", some_overfit, _all("curve-best-is-regularised-by-accident curve-train-loss-rises")),
    NullFamily("learned nothing", learned_nothing, {"curve-worse-than-chance": is_quiet}),
    NullFamily("equal trials", equal_trials, {"eval-size": is_quiet}),
    NullFamily("coarse results", coarse_error_rates, _all("params-ignored")),
    NullFamily("random sample", sampled_evaluations, _all("eval-sample-skew")),
    *(
        NullFamily(
            f"at the limit{', bursts' * bursts}, {trials} trial{'s' * (trials > 1)}",
            at_the_limit(trials, bursts=bursts),
            _all("input-bound gpu-underused clip-aggressive" + " host-sync" * (not bursts)),
        )
        for bursts in (False, True)
        for trials in (1, 4)
    ),
    *(NullFamily(f"equal values, {n} trials", equal_values(n), _NO_ANSWER) for n in (16, 24, 48)),
    NullFamily("equal values, own rates, 24 trials", equal_values(24, shifted=True), _NO_ANSWER),
    NullFamily("random search, 24 trials", noise_results(24, bowl=True), _all("adaptive-search")),
    NullFamily("dropout helps, 20 trials", dropout_helps, _all("regulariser-floor")),
    NullFamily("policies that learn", healthy_policies, _all(_OF_POLICIES)),
    NullFamily("attention logits at a limit", logits_at_a_limit, _all("attention-logits")),
    NullFamily("nothing is forgotten", nothing_forgotten, _all("forgetting")),
    NullFamily(
        "batch sizes alike", batch_sizes, _all("batch-steps", batch_throughput=message_contains("stops", "No doubling"))
    ),
)

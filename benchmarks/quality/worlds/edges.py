"""Situations about the edges of the search space, and about decisions between settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from advisor.history.compare import ComparedTrials, compare
from advisor.model.change import SetRange
from advisor.model.space import FloatArray
from advisor.planning.stages import MIN_CONFIDENCE
from advisor.tracking.study.assemble import assemble
from worlds.recorder import Recorder
from worlds.world import Outcome, Random, SimulatedStudy, Situation


def _positions(random: Random, count: int) -> FloatArray:
    """Return positions in 0..1: evenly spaced or random."""
    return np.linspace(0, 1, count) if random.integers(2) else np.sort(random.uniform(size=count))


# --- the highest learning rate that trains --------------------------------------------------------------------------------------


def rates(random: Random, count: int, inside: float) -> SimulatedStudy:
    """Return a search of the learning rate. inside: decades from the best learning rate to the highest one that trains."""
    rec = Recorder(random)
    decades, edge = float(random.uniform(3, 4.5)), float(random.uniform(-3, 0))
    logs = edge + decades * (_positions(random, count) - random.uniform(0.6, 0.8))
    name, noise = str(random.choice(["lr", "learning_rate"])), float(random.choice([0.003, 0.01]))
    steep = float(random.uniform(0.05, 0.15))
    extra = bool(random.integers(2))
    for log in random.permutation(logs):
        away = log - (edge - inside)
        excess = 0.1 + steep * away**2 + noise * random.standard_normal()
        params: dict[str, Any] = {name: float(f"{10**log:.4g}")}
        if extra:
            params["dropout"] = float(round(random.uniform(0, 0.3), 3))
        rec.log(params, excess, failed=log > edge)
    gap = 10 ** (float(min(logs[logs > edge], default=np.inf)) - float(max(logs[logs <= edge], default=-np.inf)))
    return rec.made(edge=10**edge, name=name, gap=gap)


def _has_critical_edge(outcome: Outcome) -> bool:
    return any(f.severity == "critical" for f in outcome.fired("stability-edge"))


def real_edge(random: Random, count: int) -> SimulatedStudy:
    """Return a search of the learning rate in which results improve up to the highest learning rate that trains.

    The lowest learning rate that fails is at most four times the highest one that trains. If that gap were wider, no trial would
    show the results inside it, and the advisor would rightly ask for trials there.
    """
    while True:
        made = rates(random, count, -float(random.uniform(0.3, 1.0)))
        if made.truth["gap"] <= 4:
            return made


def one_rate(random: Random) -> SimulatedStudy:
    """Return a study that is a grid of 36 learning rates. Training succeeds at only one learning rate; at all others, the result
    stays at chance level or the loss diverges."""
    rec = Recorder(random)
    logs, best = np.linspace(-5, 2, 36), int(random.integers(8, 28))
    for i, log in enumerate(logs):
        params = {"lr": float(f"{10**log:.4g}")}
        if i == best:
            rec.log(params, 0.1)
        else:
            rec.log(params, 1 - 0.004 * random.uniform(), failed=bool(i > best + random.integers(0, 4)))
    return rec.made(best=float(f"{10 ** logs[best]:.4g}"), near=(10 ** logs[best - 2], 10 ** logs[best + 2]))


def _best_rate_missed(outcome: Outcome) -> bool:
    """Return whether no finding narrows the range to the neighbourhood of the only learning rate that trains."""
    low, high = outcome.made.truth["near"]
    ranges = [c for f in outcome.fired() for c in f.changes if isinstance(c, SetRange)]
    best = outcome.made.truth["best"]
    return not any(low * 0.99 <= c.low <= best <= c.high <= high * 1.01 for c in ranges)


# --- ends of ranges in many dimensions ------------------------------------------------------------------------------------------


def eight_hyperparameters(random: Random, count: int, position: float) -> SimulatedStudy:
    """Return a random search of 8 hyperparameters. position: position of the best learning rate within its range."""
    rec, at = Recorder(random), random.uniform(size=(count, 8))
    weights = np.array([random.uniform(0.5, 1.0), *random.uniform(0, 0.35, size=7)])
    best = np.array([position, *random.uniform(0.2, 0.8, size=7)])
    noise = float(random.uniform(0.01, 0.03))
    for u in at:
        excess = 0.1 + float((weights * (u - best) ** 2).sum()) / 1.5 + noise * random.standard_normal()
        named = {f"h{i}": float(f"{x:.4f}") for i, x in enumerate(u[1:])}
        rec.log({"lr": float(f"{10 ** (-4 + 2 * u[0]):.4g}"), **named}, excess)
    return rec.made()


# Return a search of learning rate and batch size. shift: ratio of the best learning rates at the largest and the smallest batch
# size.


def batches(random: Random, shift: float, grid: bool) -> SimulatedStudy:
    """Return a search of learning rate and batch size. shift: ratio of the best rates at the largest and smallest batch size."""
    rec = Recorder(random)
    sizes = [32, 64, 128, 256][: int(random.integers(3, 5))]
    noise, steep = float(random.choice([0.003, 0.01])), float(random.uniform(0.08, 0.2))
    better = float(random.uniform(-0.02, 0.02))
    if grid:
        logs = np.linspace(-4, -1, int(random.integers(6, 9)))
        tried = [(b, float(x)) for b in sizes for x in logs]
    else:
        tried = [(int(random.choice(sizes)), float(random.uniform(-4, -1))) for _ in range(int(random.integers(24, 49)))]
    for size, log in tried:
        share = np.log(size / sizes[0]) / np.log(sizes[-1] / sizes[0])
        away = log - (-2.5 + (share - 0.5) * np.log10(shift))
        excess = 0.1 + steep * away**2 + better * share + noise * random.standard_normal()
        rec.log({"lr": float(f"{10**log:.4g}"), "batch_size": size}, excess)
    return rec.made()


def _finds_pair(outcome: Outcome) -> bool:
    return any({"lr", "batch_size"} == set((f.subject or "").split(" × ")) for f in outcome.fired("space-interaction"))


# --- enough trials --------------------------------------------------------------------------------------------------------------


def sampled_space(random: Random, *, grid: bool) -> SimulatedStudy:
    """Return a search of two or three hyperparameters, whose truth is the gain to expect from twice as many trials."""
    rec, d = Recorder(random), int(random.integers(2, 4))
    best, widths = random.uniform(0.1, 0.9, size=d), random.uniform(0.3, 1.5, size=d)
    noise = float(random.choice([0.002, 0.005, 0.01]))

    def excess(u: FloatArray) -> FloatArray:
        return np.asarray(0.1 + 0.3 * (((u - best) / widths) ** 2).sum(axis=-1))

    if grid:
        levels = [int(random.integers(2, 5)) for _ in range(d)]
        at = np.stack(np.meshgrid(*(np.linspace(0, 1, k) for k in levels)), axis=-1).reshape(-1, d)
    else:
        at = random.uniform(size=(int(random.choice([8, 12, 24, 40])), d))
    results = excess(at) + noise * random.standard_normal(len(at))
    for u, result in zip(at, results, strict=True):
        rec.log({f"x{i}": float(f"{x:.4f}") for i, x in enumerate(u)}, float(result))
    again = excess(random.uniform(size=(200, len(at), d))).min(axis=1)
    now = float(excess(at[int(np.argmin(results))]))
    gain = float(np.mean(np.maximum(now - again, 0.0)))
    good = float(np.quantile(np.minimum(results, 1.0), 1 / 3) - results.min())
    return rec.made(gain=gain * rec.scale, noise=noise * rec.scale, third=good * rec.scale)


def _asks_for_useless_trials(outcome: Outcome) -> bool:
    """Return whether the rule asks for more trials although twice as many trials would gain almost nothing.

    A finding that states a probability below one half for such a gain does not count, because the plan does not apply it.
    """
    truth = outcome.made.truth
    asks = any(f.confidence >= MIN_CONFIDENCE for f in outcome.fired("space-undersampled"))
    return asks and truth["gain"] < max(truth["noise"], 0.02 * truth["third"])


def _amount_missing(outcome: Outcome) -> bool:
    return any("would improve the best" not in str(f.message) for f in outcome.fired("space-undersampled"))


def sparse(random: Random) -> SimulatedStudy:
    """Return 8 random trials of four hyperparameters that all matter."""
    rec = Recorder(random)
    best = random.uniform(0.2, 0.8, size=4)
    for u in random.uniform(size=(8, 4)):
        excess = 0.05 + 0.5 * float(((u - best) ** 2).sum()) + 0.003 * random.standard_normal()
        rec.log({f"x{i}": float(f"{x:.4f}") for i, x in enumerate(u)}, excess)
    return rec.made()


# --- decisions between settings -------------------------------------------------------------------------------------------------


def repeated_best(
    random: Random, *, lead: float, deviation: float = 0.01, repeat_count: int | None = None, loss: bool = False
) -> SimulatedStudy:
    """Return single runs of several settings, followed by repeats of the two best settings with new seeds.

    lead: advantage of the first setting over all others, in standard deviations between seeds; all other settings are equally good.
    """
    rec = Recorder(random, accuracy=False if loss else None)
    rec.wobble = 0.0
    if loss:  # the trials are those of a language model
        rec.start = 4.7
    settings, repeat_count = int(random.integers(6, 17)), repeat_count or int(random.integers(3, 7))
    rates = random.permutation(np.round(np.logspace(-4, -2, settings), 6))
    results = 0.2 + deviation * random.standard_normal(settings)
    results[0] -= lead * deviation
    for rate, result in zip(rates, results, strict=True):
        rec.log({"lr": float(rate), "seed": 0}, float(result))
    first, second = np.argsort(results)[:2]
    for seed in range(1, repeat_count + 1):
        for chosen in (first, second):
            result = 0.2 - lead * deviation * (chosen == 0) + deviation * random.standard_normal()
            rec.log({"lr": float(rates[chosen]), "seed": seed}, float(result))
    one, other = (np.flatnonzero(rates == rates[i])[0] for i in (first, second))
    return rec.made(first=f"run-{one}", second=f"run-{other}", right=bool(first == 0))


def _calls_lead_proven(outcome: Outcome) -> bool:
    """Return whether the report treats a lead of the best setting as proven."""
    return outcome.status("adopt") == "quiet"


def _compare_decision(outcome: Outcome) -> str:
    """Return the decision that `advisor compare` makes between the two repeated settings."""
    study = assemble(outcome.made.experiment, **outcome.made.arguments)
    sides = []
    for name in ("first", "second"):
        own = next(t for t in study.trials if t.name == outcome.made.truth[name])
        sides.append(ComparedTrials(name, study, tuple(t for t in study.trials if t.params == own.params)))
    return compare(*sides).decision


def noisy_winner(random: Random) -> SimulatedStudy:
    """Return trials that are equally good. The trial with the noisiest evaluations has the best single evaluation of all."""
    rec = Recorder(random)
    rec.points, rec.wobble = 40, 0.002
    count = int(random.integers(8, 21))
    for i, log in enumerate(np.linspace(-4, -1, count)):
        rec.log({"lr": float(f"{10**log:.4g}")}, 0.2, wobble=0.03 if i > 0.8 * count else 0.002)
    return rec.made()


def _rules_are_quiet(*rules: str) -> Callable[[Outcome], bool]:
    return lambda outcome: not outcome.fired(*rules)


def _learning_rate_end(outcome: Outcome) -> bool:
    return any(f.subject == "lr" for f in outcome.fired("space-boundary"))


_EDGES: Sequence[Situation] = tuple(
    Situation(
        f"D20 best rate 0.4 decades inside the edge, {n} trials",
        "stability-edge is critical",
        partial(rates, count=n, inside=0.4),
        _has_critical_edge,
    )
    for n in (6, 10, 16, 30)
)
_REAL_EDGES: Sequence[Situation] = tuple(
    Situation(
        f"D21 results improve up to the edge, {n} trials",
        "stability-edge is not critical",
        partial(real_edge, count=n),
        lambda o: not _has_critical_edge(o),
        bound,
    )
    for n, bound in ((10, 0.6), (16, 0.3), (30, 0.0))
)

SITUATIONS: tuple[Situation, ...] = (
    *_EDGES,
    *_REAL_EDGES,
    Situation("D22 one of 36 rates trains", "its neighbourhood is not searched next", one_rate, _best_rate_missed),
    Situation(
        "D23 8 dimensions, the best rate beyond the end",
        "space-boundary is quiet",
        lambda r: eight_hyperparameters(r, int(r.integers(24, 49)), 1.3),
        lambda o: not _learning_rate_end(o),
        0.1,
    ),
    Situation(
        "D23 8 dimensions, the best rate at 0.6",
        "space-boundary fires on the rate",
        lambda r: eight_hyperparameters(r, int(r.integers(24, 49)), 0.6),
        _learning_rate_end,
        0.1,
    ),
    Situation(
        "D24 best rate shifts eightfold over batch sizes, grid",
        "no interaction found",
        lambda r: batches(r, 8.0, True),
        lambda o: not _finds_pair(o),
        0.1,
    ),
    Situation(
        "D24 best rate shifts eightfold over batch sizes, random",
        "no interaction found",
        lambda r: batches(r, 8.0, False),
        lambda o: not _finds_pair(o),
        0.2,
    ),
    Situation(
        "D24 best rate is the same at all batch sizes",
        "an interaction is found",
        lambda r: batches(r, 1.0, bool(r.integers(2))),
        _finds_pair,
    ),
    Situation(
        "D25 space sampled on a grid", "more trials without a gain", partial(sampled_space, grid=True), _asks_for_useless_trials
    ),
    Situation(
        "D25 space sampled at random",
        "more trials without a gain",
        partial(sampled_space, grid=False),
        _asks_for_useless_trials,
    ),
    Situation(
        "D25 8 trials of 4 hyperparameters", "space-undersampled is quiet", sparse, _rules_are_quiet("space-undersampled"), 0.1
    ),
    Situation("D25 the amount that more trials gain", "the amount is missing", sparse, _amount_missing, 0.0),
    Situation(
        "D26 the noisiest trial wins", "noise is not reported", noisy_winner, _rules_are_quiet("curve-step-variance", "adopt")
    ),
    Situation(
        "D27 equal settings, the two best repeated",
        "adopt shows a lead",
        partial(repeated_best, lead=0.0),
        _calls_lead_proven,
        studies=100,
    ),
    Situation(
        "D27 equal settings, the two best repeated, compare",
        "compare adopts one",
        partial(repeated_best, lead=0.0),
        lambda o: _compare_decision(o) == "adopt",
        studies=100,
    ),
    Situation(
        "D28 a lead of 4 standard deviations, 6 repeats",
        "adopt doubts it",
        partial(repeated_best, lead=4.0, repeat_count=6),
        lambda o: bool(o.made.truth["right"]) and not _calls_lead_proven(o),
        0.1,
    ),
    Situation(
        "D28 a lead of 4 standard deviations, 6 repeats, compare",
        "compare does not adopt",
        partial(repeated_best, lead=4.0, repeat_count=6),
        lambda o: bool(o.made.truth["right"]) and _compare_decision(o) != "adopt",
        0.1,
    ),
    Situation(
        "D29 a loss of 3.276 against 3.28, 6 repeats",
        "adopt shows a lead",
        partial(repeated_best, lead=4.0, deviation=0.0005, repeat_count=6, loss=True),
        _calls_lead_proven,
    ),
    Situation(
        "D29 a loss of 3.276 against 3.28, 6 repeats, compare",
        "compare adopts one",
        partial(repeated_best, lead=4.0, deviation=0.0005, repeat_count=6, loss=True),
        lambda o: _compare_decision(o) == "adopt",
    ),
)

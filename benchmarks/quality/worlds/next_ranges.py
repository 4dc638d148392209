"""Situations about the ranges and the number of trials of the next study."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from advisor.analysis import analyze_study
from advisor.engine.registry import load_rules
from advisor.model.space import FloatArray, as_number
from advisor.model.spec import Objective, Parameter, StudySpec
from advisor.tracking.study.assemble import assemble
from worlds.recorder import Recorder
from worlds.world import Outcome, Random, SimulatedStudy, Situation

DECADE = 10.5
"""Maximum factor by which a range on a log scale may grow at one end, with a margin for rounding."""
USUAL = {"sgd": 1.0, "adam": 0.03, "adamw": 0.03, "fine-tuning": 1e-3}
"""Learning rates above which an expert does not search without a reason, by kind of training."""
FACTOR = 3.3
"""Maximum factor by which a range may exceed the usual learning rates if the best trials lie right there, with a margin for
rounding."""


TOPS = {"sgd": (-2.0, 0.0), "adam": (-3.5, -1.6), "adamw": (-3.5, -1.6), "fine-tuning": (-5.0, -3.2)}
BOTTOMS = {"sgd": (-3.0, -1.5), "adam": (-5.0, -3.5), "adamw": (-5.0, -3.5), "fine-tuning": (-6.5, -5.0)}
"""Exponents of ten between which the ends of searched learning-rate ranges are drawn: the upper end (`TOPS`), and the lower end if
the best learning rate is below it (`BOTTOMS`)."""


def _kind_of_training(random: Random) -> tuple[str, dict[str, Any]]:
    """Return a kind of training, and the constants that a training of this kind logs."""
    kind = str(random.choice(list(USUAL)))
    if kind != "fine-tuning":
        return kind, {str(random.choice(["optimizer", "optim"])): kind}
    named: list[dict[str, Any]] = [{"model_name_or_path": "bert-base-uncased"}, {"pretrained": True}, {"base_model": "llama"}]
    constants: dict[str, Any] = {"optimizer": str(random.choice(["adamw", "adamw_torch"]))}
    return kind, constants | named[int(random.integers(3))]


def _positions(random: Random, count: int, axes: int) -> FloatArray:
    """Return positions (count, axes) between 0 and 1: evenly spaced or random for a single axis, random for several axes."""
    if axes == 1 and random.integers(2):
        return np.linspace(0, 1, count)[:, None]
    at = random.uniform(size=(count, axes))
    at[:, 0] = (at[:, 0] - at[:, 0].min()) / (at[:, 0].max() - at[:, 0].min())
    return np.asarray(at)


def search_of_rate(
    random: Random, best_position: float, *, count: int | None = None, axes: int | None = None
) -> SimulatedStudy:
    """Return a search of the learning rate and possibly of other hyperparameters. best_position: position of the best learning rate
    in its range; 1 is the upper end."""
    rec, (kind, constants) = Recorder(random), _kind_of_training(random)
    d = axes or int(random.integers(1, 4))
    n = count or max(int(random.choice([10, 16, 24, 40])), 8 * d)
    width, name = float(random.uniform(2, 3.5)), str(random.choice(["lr", "learning_rate"]))
    down = bool(random.integers(2)) and best_position > 1
    end = float(random.uniform(*(BOTTOMS if down else TOPS)[kind]))
    inward = width if down else -width
    steep, sd = float(random.uniform(0.08, 0.2)), float(random.choice([0.003, 0.01]))
    others = random.uniform(0.25, 0.75, size=d - 1)
    logs = []
    for u in random.permutation(_positions(random, n, d)):
        excess = 0.05 + steep * (width * (u[0] - best_position)) ** 2 + 0.4 * float(((u[1:] - others) ** 2).sum())
        logs.append(end + inward * (1 - u[0]))
        params = {name: float(f"{10 ** logs[-1]:.4g}"), **constants}
        params |= {f"h{i}": float(f"{x:.4f}") for i, x in enumerate(u[1:])}
        rec.log(params, excess + sd * random.standard_normal())
    low, high = (float(f"{10**x:.4g}") for x in (min(logs), max(logs)))
    best = 10 ** (end + inward * (1 - best_position))
    return rec.made(name=name, kind=kind, best=best, low=low, high=high, side="low" if down else "high")


def _next_range(outcome: Outcome, name: str) -> Parameter | None:
    """Return the named hyperparameter in the first next study; None if that study does not search it."""
    if outcome.report is None or not outcome.report.next:
        return None
    found = outcome.report.next[0].parameters.get(name)
    return found if found is not None and found.numeric else None


def _is_not_extended(outcome: Outcome) -> bool:
    """Return whether the next range is not extended at the end where the optimum lies."""
    truth = outcome.made.truth
    new = _next_range(outcome, truth["name"])
    if new is None or new.low is None or new.high is None:
        return True
    return bool(new.high <= 1.001 * truth["high"] if truth["side"] == "high" else new.low >= 0.999 * truth["low"])


def _excludes_optimum(outcome: Outcome) -> bool:
    """Return whether the next range is extended but does not contain the optimum."""
    truth = outcome.made.truth
    new = _next_range(outcome, truth["name"])
    if _is_not_extended(outcome) or new is None or new.low is None or new.high is None:
        return False
    return bool(not new.low <= truth["best"] <= new.high)


def _searches_too_far(outcome: Outcome) -> bool:
    """Return whether the next range extends more than a decade beyond an end, or far beyond the usual learning rates."""
    truth = outcome.made.truth
    new = _next_range(outcome, truth["name"])
    if new is None or new.low is None or new.high is None:
        return False
    usual = max(USUAL[truth["kind"]] * 1.01, FACTOR * truth["high"])
    return bool(new.high > min(DECADE * truth["high"], usual) or new.low < truth["low"] / DECADE)


def _says_improving(outcome: Outcome) -> bool:
    return any("still improve towards" in str(f.message) for f in outcome.fired("space-boundary"))


def _searches_past_visible_optimum(outcome: Outcome) -> bool:
    """Return whether the range of the learning rate is extended although trials show that the optimum lies inside it."""
    truth = outcome.made.truth
    new = _next_range(outcome, truth["name"])
    beyond = new is not None and new.high is not None and new.high > 1.01 * truth["high"]
    return beyond or _says_improving(outcome)


def poor_outermost_trial(random: Random) -> SimulatedStudy:
    """Return a sweep in which the outermost trial is much worse than its neighbours, which are the best trials of the sweep."""
    rec, count = Recorder(random), int(random.integers(8, 20))
    kind, constants = _kind_of_training(random)
    top = float(random.uniform(*TOPS[kind]))
    width, name = float(random.uniform(2, 4)), str(random.choice(["lr", "learning_rate"]))
    logs = top - width * np.linspace(1, 0, count)
    slope, drop = float(random.uniform(0.08, 0.15)), float(random.uniform(0.03, 0.3))
    for i in random.permutation(count):
        excess = 0.1 + slope * (logs[-2] - logs[i]) if i < count - 1 else 0.1 + drop
        rec.log({name: float(f"{10 ** logs[i]:.4g}"), **constants}, excess + 0.003 * random.standard_normal())
    return rec.made(name=name, kind=kind, high=float(f"{10**top:.4g}"))


def diverged_beyond(random: Random) -> SimulatedStudy:
    """Return a study with a declared range, and with trials that diverged at learning rates somewhat above that range."""
    rec = Recorder(random)
    kind, constants = _kind_of_training(random)
    top = float(random.uniform(*TOPS[kind]))
    width, name = float(random.uniform(2, 3)), str(random.choice(["lr", "learning_rate"]))
    fails = top + float(random.uniform(0.3, 0.9))
    steep = float(random.uniform(0.08, 0.2))
    for u in random.permutation(_positions(random, int(random.choice([12, 20])), 1)[:, 0]):
        excess = 0.05 + steep * (width * (u - 1.1)) ** 2 + 0.003 * random.standard_normal()
        rec.log({name: float(f"{10 ** (top - width * (1 - u)):.4g}"), **constants}, excess)
    for beyond in (0.0, *random.uniform(0, 0.5, size=int(random.integers(1, 3)))):
        rec.log({name: float(f"{10 ** (fails + beyond):.4g}"), **constants}, 0.9, failed=True)
    made = rec.made(name=name, kind=kind, fails=10**fails)
    range_ = Parameter(low=float(f"{10 ** (top - width):.3g}"), high=float(f"{10**top:.3g}"), scale="log")
    spec = StudySpec(study="s", objective=Objective.model_validate(_objective(made)), parameters={name: range_})
    return SimulatedStudy(made.experiment, {"spec": spec}, made.truth)


def _objective(simulated: SimulatedStudy) -> dict[str, Any]:
    return {"metric": simulated.arguments["objective"], "direction": simulated.arguments["direction"]}


def _searches_past_divergence(outcome: Outcome) -> bool:
    new = _next_range(outcome, outcome.made.truth["name"])
    return new is not None and new.high is not None and new.high >= outcome.made.truth["fails"]


def optimum_inside(random: Random, count: int) -> SimulatedStudy:
    """Return a search of two or three hyperparameters whose optimum lies well inside every range."""
    return search_of_rate(random, float(random.uniform(0.4, 0.6)), count=count, axes=int(random.integers(2, 4)))


def _has_as_many_trials(outcome: Outcome) -> bool:
    """Return whether the next study has as many trials as the study before it."""
    if outcome.report is None or not outcome.report.next:
        return False
    return (outcome.report.next[0].trials or 0) >= outcome.report.counts.total


def _repeats_other_side(outcome: Outcome) -> bool:
    """Return whether the next sweep of one hyperparameter, whose range is extended at one end, also searches all values at the
    other end again."""
    truth = outcome.made.truth
    new = _next_range(outcome, truth["name"])
    if new is None or new.low is None or new.high is None or _is_not_extended(outcome):
        return False
    return bool(new.low <= 1.01 * truth["low"] if truth["side"] == "high" else new.high >= 0.99 * truth["high"])


def two_trials(random: Random) -> SimulatedStudy:
    """Return a study whose results are noise, and whose two best trials happen to lie at the top of one range."""
    rec, n = Recorder(random), int(random.choice([6, 10, 16, 24]))
    at = random.uniform(size=(n, int(random.integers(1, 4))))
    results = np.sort(0.2 + 0.02 * random.standard_normal(n))
    results[:2] -= 0.05
    order = np.argsort(-at[:, 0])[:2]
    rest = random.permutation(np.setdiff1d(np.arange(n), order))
    for i, result in zip([*order, *rest], results, strict=True):
        named = {f"h{j}": float(f"{x:.4f}") for j, x in enumerate(at[i, 1:])}
        rec.log({"lr": float(f"{10 ** (-5 + 3 * at[i, 0]):.4g}"), **named}, float(result))
    return rec.made(name="lr")


def _leads_as_warning(outcome: Outcome) -> bool:
    heads = outcome.report.heads[:1] if outcome.report is not None else ()
    return any(f.rule == "space-boundary" and f.severity == "warning" for f in heads)


def six_hyperparameters(random: Random) -> SimulatedStudy:
    """Return a study of 12 random trials of six hyperparameters. Only two of them matter."""
    rec = Recorder(random)
    best = random.uniform(0.3, 0.7, size=2)
    for u in random.uniform(size=(12, 6)):
        excess = 0.05 + 0.8 * float(((u[:2] - best) ** 2).sum()) + 0.003 * random.standard_normal()
        rec.log(
            {"lr": float(f"{10 ** (-5 + 3 * u[0]):.4g}"), **{f"h{i}": float(f"{x:.4f}") for i, x in enumerate(u[1:])}}, excess
        )
    return rec.made(name="lr")


def _ignores_subset_search(outcome: Outcome) -> bool:
    """Return whether the next study has many trials of all hyperparameters and does not mention a search of fewer
    hyperparameters."""
    if outcome.report is None or not outcome.report.next:
        return False
    spec = outcome.report.next[0]
    return len(spec.searched) > 4 and not any("hyperparameters that matter most" in note for note in spec.notes)


def _exceeds_budget(outcome: Outcome) -> bool:
    """Return whether a plan with a budget of half of the last study's cost exceeds this budget, or does not say what it leaves
    out."""
    made = outcome.made
    study = assemble(made.experiment, **made.arguments)
    steps = sum(float(study.cost_curve(t).steps[-1]) for t in study.trials if len(study.cost_curve(t)))
    report = analyze_study(study, rules=load_rules(), budget=f"{steps / 2:.0f} steps")
    planned = sum((s.trials or 1) * (s.seeds or 1) * (s.max_train_steps or steps / len(study.trials)) for s in report.next)
    free = analyze_study(study, rules=load_rules())
    before = [s for s in free.next if (s.trials or 1) > 0]
    less = len(report.next) < len(before) or any(
        (a.trials or 0) < (b.trials or 0) for a, b in zip(report.next, before, strict=False)
    )
    said = any("budget" in note for s in report.next for note in s.notes)
    return planned > 1.001 * steps / 2 or (less and not said)


def unstable_start(random: Random) -> SimulatedStudy:
    """Return a search of the learning rate in which a low rate diverged early for an unrelated reason, while higher rates train."""
    rec = Recorder(random, accuracy=True)
    logs = np.linspace(-5, -3, int(random.integers(8, 16)))
    odd = int(random.integers(0, len(logs) // 2))
    for i in random.permutation(len(logs)):
        excess = 0.1 + 0.1 * abs(logs[i] + 3.4) + 0.003 * random.standard_normal()
        rec.log({"lr": float(f"{10 ** logs[i]:.4g}")}, excess)
    points = np.arange(1, rec.steps + 1, max(rec.steps // 400, 1))
    early = 2.3 + np.where(points < 0.08 * rec.steps, 3.0 * points / (0.08 * rec.steps), -1.0)
    noise = 0.02 * random.standard_normal(len(points))
    rec.store.log(
        {"lr": float(f"{10 ** (logs[odd] * 1.001):.4g}")},
        {rec.metric: ([rec.steps // 2, rec.steps], [0.4, 0.5]), "train_loss": (points, early + noise)},
    )
    return rec.made(name="lr")


def _has_peak_below_best(outcome: Outcome) -> bool:
    """Return whether a study of warmups has a lower peak learning rate than the best trial."""
    if outcome.report is None or outcome.report.best is None:
        return False
    best = float(outcome.report.best.params["lr"])
    specs = [s for s in outcome.report.next if s.probe == "warmup"]
    return any(as_number(s.parameters["lr"].value) <= best for s in specs)


_BEYOND = "The best learning rate lies 10 % beyond the range"
SITUATIONS: tuple[Situation, ...] = (
    Situation("E40 " + _BEYOND, "the moved range leaves it out", partial(search_of_rate, best_position=1.1), _excludes_optimum),
    Situation(
        "E41 " + _BEYOND, "the range is not extended", partial(search_of_rate, best_position=1.1), _is_not_extended, bound=0.2
    ),
    Situation(
        "E42 SGD, Adam and fine-tuning, best rate beyond the range",
        "a range that no expert would search",
        partial(search_of_rate, best_position=1.3),
        _searches_too_far,
    ),
    Situation(
        "E43 One-axis sweep, best rate just inside",
        "the range moves past it",
        lambda random: search_of_rate(random, float(random.uniform(0.75, 0.9)), count=int(random.choice([12, 16, 24])), axes=1),
        _searches_past_visible_optimum,
    ),
    Situation(
        "E44 The outermost trial is worse than its neighbours",
        "the range moves past them",
        poor_outermost_trial,
        _searches_past_visible_optimum,
    ),
    Situation("E45 Rates beyond the range diverged", "the range goes there", diverged_beyond, _searches_past_divergence),
    Situation("E46 60 trials, optimum inside", "as many trials again", partial(optimum_inside, count=60), _has_as_many_trials),
    Situation(
        "E47 One-axis sweep, best rate beyond",
        "the other side stays",
        lambda random: search_of_rate(random, 1.1, count=int(random.choice([12, 16, 24])), axes=1),
        _repeats_other_side,
    ),
    Situation("E48 Noise, the two best trials at the top", "leads as a warning", two_trials, _leads_as_warning),
    Situation(
        "E49 12 trials of six hyperparameters", "no word on fewer hyperparameters", six_hyperparameters, _ignores_subset_search
    ),
    Situation(
        "E50 A low rate is unstable, higher ones are not",
        "the warmup's peak is below the best",
        unstable_start,
        _has_peak_below_best,
    ),
    Situation(
        "E51 Half the budget",
        "the plan costs more, or does not say what is left out",
        partial(optimum_inside, count=24),
        _exceeds_budget,
        studies=20,
    ),
)

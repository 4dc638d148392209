"""The table of a run: how much worse each search ended than the best that is known, and how often the loop did better.

Regret is the cost of the chosen setting, judged afresh, minus the best that is known: on a grid its best point's mean, on a
training the best that any search chose with any seed. Intervals are 95 % bootstrap intervals: over seeds for a task, over tasks
for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from advisor.model.space import FloatArray
from loop.results import LOOP, Result

DRAWS = 2000


def text(found: Sequence[Result], floors: Mapping[str, float], *, losses: bool = False) -> str:
    """The whole table; `floors` are the lowest costs that there are, by task, NaN where nobody knows."""
    regrets = regrets_of(found, floors)
    contenders = list(dict.fromkeys(r.contender for r in found))
    lines = []
    for wrong, title in ((True, "Wrong starting space"), (False, "Right starting space")):
        tasks = list(dict.fromkeys(r.task for r in found if r.wrong == wrong))
        if tasks:
            lines += ["", f"### {title}: median regret", "", *_by_task(regrets, tasks, contenders)]
            if LOOP in contenders:
                lines += ["", *_against(regrets, tasks, contenders)]
    return "\n".join([*lines, *(_told(found, regrets) if losses else [])]).strip()


Regrets = Mapping[tuple[str, str], Mapping[int, float]]
"""{(task, contender): {seed: regret}}."""


def regrets_of(found: Sequence[Result], floors: Mapping[str, float]) -> Regrets:
    """The regret of every result."""
    best: dict[str, float] = {task: floor for task, floor in floors.items() if np.isfinite(floor)}
    for r in found:
        if not np.isfinite(floors[r.task]):
            best[r.task] = min(best.get(r.task, np.inf), r.cost)
    out: dict[tuple[str, str], dict[int, float]] = {}
    for r in found:
        out.setdefault((r.task, r.contender), {})[r.seed] = r.cost - best[r.task]
    return out


def _by_task(regrets: Regrets, tasks: Sequence[str], contenders: Sequence[str]) -> list[str]:
    rows = [f"| task | {' | '.join(contenders)} |", f"|---|{'---|' * len(contenders)}"]
    for task in tasks:
        cells = [_median(np.array(list(regrets.get((task, c), {}).values()))) for c in contenders]
        rows.append(f"| {task} | {' | '.join(cells)} |")
    return rows


def _median(values: FloatArray) -> str:
    if not len(values):
        return "-"
    drawn = np.random.default_rng(0).choice(values, (DRAWS, len(values)))
    low, high = np.quantile(np.median(drawn, axis=1), [0.025, 0.975])
    return f"{np.median(values):.3g} ({low:.2g} to {high:.2g})"


def _against(regrets: Regrets, tasks: Sequence[str], contenders: Sequence[str]) -> list[str]:
    """How often the loop did better than each contender, and the ratio of the median regrets."""
    rows = ["| against | loop better | median regret, the loop's over its |", "|---|---|---|"]
    for other in (c for c in contenders if c != LOOP):
        pairs = {t: _pairs(regrets, t, other) for t in tasks}
        pairs = {t: p for t, p in pairs.items() if len(p)}
        if pairs:
            rows.append(f"| {other} | {_wins(list(pairs.values()))} | {_ratio(list(pairs.values()))} |")
    best = [_best_of_others(regrets, t, contenders) for t in tasks]
    if any(len(p) for p in best):
        rows.append(f"| the best of them by median, task by task | {_wins([p for p in best if len(p)])} | |")
    return rows


def _pairs(regrets: Regrets, task: str, other: str) -> FloatArray:
    """The regrets (seeds, 2) of the loop and of the other with the same seeds."""
    ours, theirs = regrets.get((task, LOOP), {}), regrets.get((task, other), {})
    return np.array([[ours[s], theirs[s]] for s in sorted(set(ours) & set(theirs))])


def _best_of_others(regrets: Regrets, task: str, contenders: Sequence[str]) -> FloatArray:
    given = [c for c in contenders if c != LOOP and "x" not in c.partition(",")[2] and (task, c) in regrets]
    if not given:
        return np.empty((0, 2))
    return _pairs(regrets, task, min(given, key=lambda c: float(np.median(list(regrets[task, c].values())))))


def _wins(pairs: Sequence[FloatArray]) -> str:
    """Share of tasks x seeds in which the loop did better, ties as halves, with its interval over tasks."""
    shares = [np.mean(np.where(p[:, 0] == p[:, 1], 0.5, p[:, 0] < p[:, 1])) for p in pairs]
    drawn = np.random.default_rng(0).choice(np.array(shares), (DRAWS, len(shares)))
    low, high = np.quantile(drawn.mean(-1), [0.025, 0.975])
    return f"{np.mean(shares):.0%} ({low:.0%} to {high:.0%})"


def _ratio(pairs: Sequence[FloatArray]) -> str:
    """Ratio of the medians over tasks x seeds of the regrets, each in units of what both median regrets on its task sum to."""
    scaled = [p / max(float(np.median(p, axis=0).sum()), 1e-12) for p in pairs]
    every = np.concatenate(scaled)
    ours, theirs = np.median(every, axis=0)
    rng = np.random.default_rng(0)
    drawn = []
    for _ in range(DRAWS // 4):
        some = np.median(np.concatenate([scaled[i] for i in rng.integers(len(scaled), size=len(scaled))]), axis=0)
        drawn.append(some[0] / max(some[1], 1e-12))
    low, high = np.quantile(drawn, [0.025, 0.975])
    return f"{_times(ours / max(theirs, 1e-12))} ({_times(low)} to {_times(high)})"


def _times(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio < 100 else "over 100"


def _told(found: Sequence[Result], regrets: Regrets) -> list[str]:
    """What the loop did where some contender with as many trials ended better."""
    lines = []
    for r in (r for r in found if r.contender == LOOP):
        own = regrets[r.task, LOOP][r.seed]
        better = [
            f"{c} {seeds[r.seed]:.3g}"
            for (task, c), seeds in regrets.items()
            if task == r.task and c != LOOP and seeds.get(r.seed, np.inf) < own
        ]
        if better:
            lines += [
                "",
                f"{r.task}, seed {r.seed}: {own:.3g}, behind {', '.join(better)}",
                *(f"    {t}" for t in r.told),
            ]
    return lines

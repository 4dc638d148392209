"""Makes the table of results: the regret of each search, and how often the loop beat the other searches.

Regret is the cost of the chosen setting in new trainings, minus the best known cost: on a grid, the mean cost of the best point;
for a real training, the cost of the best setting that any search chose with any seed. Intervals are 95 % bootstrap intervals: over
seeds for a single task, over tasks for all tasks together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from advisor.model.space import FloatArray
from loop.results import LOOP, ROUND, Result
from loop.task import Space

DRAWS = 2000
BEYOND = 2.0
"""Minimum difference, in between-seed standard deviations, at which a regret counts as worse by more than seed noise."""
BINS = ((0.0, 0.2), (0.2, 0.4), (0.4, 0.6), (0.6, 0.85), (0.85, 1.0))
"""Bins of stated probabilities in the calibration table. Each bin includes its lower end."""
TITLES: Mapping[Space, str] = {
    "wrong": "Wrong starting space",
    "too wide": "Starting space ten times too wide",
    "right": "Right starting space",
}


def table_text(results: Sequence[Result], floors: Mapping[str, float], *, losses: bool = False) -> str:
    """Return the whole table. floors: the lowest possible cost of each task, NaN if unknown."""
    searches = [r for r in results if r.contender != ROUND]
    regrets = regrets_of(searches, floors)
    contenders = list(dict.fromkeys(r.contender for r in searches))
    lines = []
    for kind, title in TITLES.items():
        tasks = list(dict.fromkeys(r.task for r in results if r.kind == kind))
        if tasks and contenders:
            lines += ["", f"### {title}: median regret", "", *_by_task(regrets, tasks, contenders)]
            if LOOP in contenders:
                noise = {t: float(np.median([r.noise for r in results if r.task == t])) for t in tasks}
                lines += ["", *_comparison_table(regrets, tasks, contenders, noise)]
    for contender, title in ((LOOP, "Predictions of the loop"), (ROUND, "Predictions of one study for the next one")):
        lines += _calibration_table(title, [p for r in results if r.contender == contender for p in r.predictions])
    return "\n".join([*lines, *(_loss_lines(results, regrets) if losses else [])]).strip()


Regrets = Mapping[tuple[str, str], Mapping[int, float]]
"""{(task, contender): {seed: regret}}."""


def regrets_of(results: Sequence[Result], floors: Mapping[str, float]) -> Regrets:
    best: dict[str, float] = {task: floor for task, floor in floors.items() if np.isfinite(floor)}
    for r in results:
        if not np.isfinite(floors[r.task]):
            best[r.task] = min(best.get(r.task, np.inf), r.cost)
    out: dict[tuple[str, str], dict[int, float]] = {}
    for r in results:
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


def _comparison_table(
    regrets: Regrets, tasks: Sequence[str], contenders: Sequence[str], noise: Mapping[str, float]
) -> list[str]:
    """Return a table with the share of searches in which the loop beat each contender, and the ratios of median regrets."""
    rows = [
        "| against | loop better | not worse beyond seed noise | ratio of median regrets, loop / other |",
        "|---|---|---|---|",
    ]
    for other in (c for c in contenders if c != LOOP):
        pairs = {t: _pairs(regrets, t, other) for t in tasks}
        pairs = {t: p for t, p in pairs.items() if len(p)}
        if pairs:
            shares = [float(np.mean(p[:, 0] <= p[:, 1] + BEYOND * noise[t])) for t, p in pairs.items()]
            each = list(pairs.values())
            rows.append(f"| {other} | {_share_of_wins(each)} | {_share(shares)} | {_regret_ratio(each)} |")
    best = [_best_other_contender(regrets, t, contenders) for t in tasks]
    if any(len(p) for p in best):
        rows.append(f"| the best of them by median in each task | {_share_of_wins([p for p in best if len(p)])} | | |")
    return rows


def _pairs(regrets: Regrets, task: str, other: str) -> FloatArray:
    """Return the regrets of the loop and of the contender `other` with the same seeds, shape (seeds, 2)."""
    ours, theirs = regrets.get((task, LOOP), {}), regrets.get((task, other), {})
    return np.array([[ours[s], theirs[s]] for s in sorted(set(ours) & set(theirs))])


def _best_other_contender(regrets: Regrets, task: str, contenders: Sequence[str]) -> FloatArray:
    fair = [c for c in contenders if c != LOOP and "x" not in c.partition(",")[2] and (task, c) in regrets]
    if not fair:
        return np.empty((0, 2))
    return _pairs(regrets, task, min(fair, key=lambda c: float(np.median(list(regrets[task, c].values())))))


def _share_of_wins(pairs: Sequence[FloatArray]) -> str:
    """Return the share of task-seed pairs in which the loop beat the contender (a tie counts half), with the share's 95 % interval
    over tasks."""
    return _share([float(np.mean(np.where(p[:, 0] == p[:, 1], 0.5, p[:, 0] < p[:, 1]))) for p in pairs])


def _share(shares: Sequence[float]) -> str:
    """Return the mean of the tasks' shares, with its 95 % interval over tasks."""
    drawn = np.random.default_rng(0).choice(np.array(shares), (DRAWS, len(shares)))
    low, high = np.quantile(drawn.mean(-1), [0.025, 0.975])
    return f"{np.mean(shares):.0%} ({low:.0%} to {high:.0%})"


def _regret_ratio(pairs: Sequence[FloatArray]) -> str:
    """Return the ratio of the two median regrets over all task-seed pairs; each task's regrets are first divided by the sum of its
    two medians."""
    scaled = [p / max(float(np.median(p, axis=0).sum()), 1e-12) for p in pairs]
    pooled = np.concatenate(scaled)
    ours, theirs = np.median(pooled, axis=0)
    rng = np.random.default_rng(0)
    drawn = []
    for _ in range(DRAWS // 4):
        medians = np.median(np.concatenate([scaled[i] for i in rng.integers(len(scaled), size=len(scaled))]), axis=0)
        drawn.append(medians[0] / max(medians[1], 1e-12))
    low, high = np.quantile(drawn, [0.025, 0.975])
    return f"{_ratio_text(ours / max(theirs, 1e-12))} ({_ratio_text(low)} to {_ratio_text(high)})"


def _ratio_text(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio < 100 else "over 100"


def _calibration_table(title: str, predictions: Sequence[tuple[float, bool]]) -> list[str]:
    """Return a table with the share of predictions that came true, by stated probability."""
    if not predictions:
        return []
    stated, kept = np.array(predictions, dtype=np.float64).T
    rows = [f"| {low:.0%} to {high:.0%} | {_prediction_cells(stated, kept, low, high)} |" for low, high in BINS]
    brier = float(np.mean((stated - kept) ** 2))
    head = [f"### {title}", "", "| stated probability | predictions | mean stated | came true |"]
    return ["", *head, "|---|---|---|---|", *rows, "", f"Brier score {brier:.3f}, {len(stated)} predictions."]


def _prediction_cells(stated: FloatArray, came_true: FloatArray, low: float, high: float) -> str:
    these = (stated >= low) & (stated < (high if high < 1 else 1.1))
    if not these.any():
        return "0 | - | -"
    return f"{these.sum()} | {stated[these].mean():.0%} | {came_true[these].mean():.0%}"


def _loss_lines(results: Sequence[Result], regrets: Regrets) -> list[str]:
    """List the loop's decisions in each search in which another contender had a lower regret."""
    lines = []
    for r in (r for r in results if r.contender == LOOP):
        own = regrets[r.task, LOOP][r.seed]
        better = [
            f"{c} {seeds[r.seed]:.3g}"
            for (task, c), seeds in regrets.items()
            if task == r.task and c != LOOP and seeds.get(r.seed, np.inf) < own
        ]
        if better:
            lines += ["", f"{r.task}, seed {r.seed}: {own:.3g}, behind {', '.join(better)}", *(f"    {t}" for t in r.log)]
    return lines

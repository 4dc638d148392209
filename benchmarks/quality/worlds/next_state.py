"""Situations about the choice of the next step: too little evidence, one change per round, agreement of the headline with the first
study."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from advisor.model import parameter_kinds
from advisor.model.space import as_number, is_learning_rate
from advisor.model.spec import Objective, Parameter, StudySpec
from worlds import shapes
from worlds.trials import OTHERS, RATES, loss_study, settings, store_of_trials
from worlds.world import Metric, Outcome, Random, SimulatedStudy, Situation, Store

VERBS = frozenset(
    "Fix Stabilize Widen Narrow Search Compare Lengthen Shorten Exploit Repeat Sweep Add Measure Find Resume Set Drop".split()
)


# --- nothing can be told --------------------------------------------------------------------------------------------------------


def _noise_study(random: Random) -> SimulatedStudy:
    """Return a study of 6 to 20 trials of 1 to 5 hyperparameters without an effect."""
    params, _ = settings(random, int(random.integers(6, 21)), int(random.integers(1, 6)))
    costs = 0.5 + 10 ** random.uniform(-3, -1) * random.standard_normal(len(params))
    store = store_of_trials(random, params, np.clip(costs, 0.1, None), 10 ** random.uniform(-4, -2.5))
    return loss_study(store)


def _effect_study(random: Random) -> SimulatedStudy:
    """Return a study like that of `_noise_study`, except that one hyperparameter has a clear effect and its optimum lies inside the
    range."""
    params, at = settings(random, int(random.integers(6, 21)), int(random.integers(1, 6)))
    costs = 0.5 + random.uniform(0.5, 2) * (at[:, 0] - random.uniform(0.35, 0.65)) ** 2
    return loss_study(store_of_trials(random, params, costs + 0.005 * random.standard_normal(len(params))))


def _ignores_effect(outcome: Outcome) -> bool:
    """Return whether no next study searches the learning rate, which is the only hyperparameter with an effect."""
    if outcome.report is None or not outcome.report.next_studies:
        return True
    return not any(map(is_learning_rate, outcome.report.next_studies[0].spec.searched))


def _exploits_or_deploys(outcome: Outcome) -> bool:
    """Return whether a next study exploits or deploys, there is no next study, or the study was refused."""
    if outcome.report is None or not outcome.report.next_studies:
        return True
    specs = [n.spec for n in outcome.report.next_studies]
    return any(s.sampler.kind == "adaptive" or "test set" in " ".join(s.notes) for s in specs)


def _lacks_cost(outcome: Outcome) -> bool:
    """Return whether the first next study neither follows from a finding nor states its cost and what its results would show."""
    if outcome.report is None or not outcome.report.next_studies:
        return True
    if any(f.severity != "note" for f in outcome.fired()):
        return False
    notes = " ".join(outcome.report.next_studies[0].spec.notes)
    return not (re.search(r"cost[s]? [\d,]+ steps", notes) and re.search(r"80 %|seed", notes))


_KINDS: Mapping[str, Callable[[Random], tuple[str, str, Callable[[Random, float], shapes.Curves]]]] = {
    "GAN": shapes.OTHERS["GAN"],
    "diffusion": shapes.OTHERS["diffusion"],
    "supervised": shapes.OTHERS["wandering noise"],
    "language model": lambda _: ("eval_loss", "minimize", _language_model_study),
    "reinforcement learning": lambda _: ("success_rate", "maximize", _policy_study),
}


def _language_model_study(random: Random, off: float) -> shapes.Curves:
    loss = 2.5 * shapes.falling_loss(random, 1000, off) * np.exp(0.02 * random.normal(size=1000))
    return {"train/loss": (10 * np.arange(1000), loss), "eval_loss": (10 * np.arange(24, 1000, 25), 1.02 * loss[24::25])}


def _policy_study(random: Random, off: float) -> shapes.Curves:
    success = shapes.policy_success_rate(random, 80, off)
    steps = 2048 * np.arange(1, 81)
    losses: dict[str, Metric] = {k: (steps, v) for k, v in shapes.policy_losses(random, success).items()}
    return {"success_rate": (steps, success), **losses}


def _single_setting_study(kind: str | None, runs: tuple[int, int], *, rate: bool = True) -> Callable[[Random], SimulatedStudy]:
    """Return a generator of studies of a single setting. kind: kind of workload; None: any kind."""

    def make(random: Random) -> SimulatedStudy:
        chosen = kind or str(random.choice(list(_KINDS)))
        metric, direction, curves = _KINDS[chosen](random)
        params: dict[str, Any] = {"batch_size": int(random.choice([32, 64, 256])), "weight_decay": 0.01}
        name = str(random.choice(RATES))
        if rate:
            params[name] = float(random.choice([1e-4, 3e-4, 1e-3, 0.1]))
        store, off = Store(), float(random.uniform(-1, 1))
        for seed in range(int(random.integers(runs[0], runs[1] + 1))):
            seeded = {"seed": seed} if runs[1] > 1 else {}
            store.log({**params, **seeded}, curves(random, off))
        return SimulatedStudy(
            store.experiment(), {"objective": metric, "direction": direction}, {"rate": name, "params": params}
        )

    return make


def _plans_no_sweep(outcome: Outcome) -> bool:
    """Return whether the first next study is not a sweep of the learning rate by a decade to each side, at a tenth of the
    length."""
    if outcome.report is None or not outcome.report.next_studies:
        return True
    spec, name = outcome.report.next_studies[0].spec, outcome.made.truth["rate"]
    used, length = outcome.made.truth["params"][name], outcome.report.spec.max_train_steps
    searched = spec.searched
    if list(searched) != [name] or not spec.max_train_steps or not length:
        return True
    low, high = searched[name].low or 0.0, searched[name].high or 0.0
    around = np.isclose(low, used / 10, rtol=0.02) and np.isclose(high, used * 10, rtol=0.02)
    tenth = length / 12 <= spec.max_train_steps <= length / 5
    every = (spec.evaluate_every or 1) <= spec.max_train_steps / 5
    return not (around and tenth and every and 5 <= (spec.trials or 0) <= 16 and spec.notes)


def _asks_no_question(outcome: Outcome) -> bool:
    """Return whether the notes of the first next study do not ask to log the learning rate."""
    if outcome.report is None or not outcome.report.next_studies:
        return True
    notes = " ".join(outcome.report.next_studies[0].spec.notes)
    return "learning rate" not in notes or "log" not in notes.lower()


def _study_of_six_hyperparameters(random: Random) -> SimulatedStudy:
    """Return a study of 12 trials of six hyperparameters. Only one or two of them matter."""
    params, at = settings(random, 12, 6)
    weights = np.array([1.0, random.uniform(0, 0.6), 0, 0, 0, 0])
    costs = 0.5 + ((at - random.uniform(0.3, 0.7, 6)) ** 2 * weights).sum(1) + 0.02 * random.standard_normal(12)
    return loss_study(store_of_trials(random, params, costs))


def _offers_no_subset_search(outcome: Outcome) -> bool:
    """Return whether neither the next study nor its notes offer 12 to 24 trials of two hyperparameters with all others fixed."""
    if outcome.report is None or not outcome.report.next_studies:
        return True
    if any(f.goal in ("boundary", "infeasible") and f.severity != "note" for f in outcome.fired()):
        return False  # the range has to be moved first
    for n in outcome.report.next_studies:
        rates = any(is_learning_rate(name) for name in n.spec.searched)
        if len(n.spec.searched) == 2 and rates and 12 <= (n.spec.trials or 0) <= 24 and len(n.spec.parameters) >= 6:
            return False
    return True


# --- one change a round ---------------------------------------------------------------------------------------------------------


def _overfitting_study(random: Random) -> SimulatedStudy:
    """Return a study whose trials overfit, so that their best steps come before the end. The study may already search a
    regulariser."""
    store, evaluations = Store(), int(random.integers(8, 16))
    has = str(random.choice(["", "", "dropout", "weight_decay", "fixed"]))
    for _ in range(int(random.integers(10, 21))):
        course = shapes.fine_tuning_curves(random, evaluations, overfits=True)
        steps = 200 * np.arange(1, evaluations + 1)
        params: dict[str, Any] = {"learning_rate": float(10 ** random.uniform(-5, -4)), "batch_size": 32}
        if has == "fixed":
            params["weight_decay"] = 0.0
        elif has:
            params[has] = float(random.uniform(0, 0.1))
        store.log(params, {"train_loss": (steps, course.train), "val_loss": (steps, course.valid)})
    return loss_study(store)


def _is_within(new: Parameter, old: Parameter | None) -> bool:
    """Return whether a range lies inside an older range, apart from rounding errors at its ends."""
    if old is None or new.domain == old.domain:
        return old is not None
    inside = as_number(new.low) >= 0.95 * as_number(old.low), as_number(new.high) <= 1.05 * as_number(old.high)
    return all(inside)  # choices have no ends, so each comparison with NaN yields False


def _changes_too_much(outcome: Outcome) -> bool:
    """Return whether the next study against overfitting changes several regularisers, excludes zero, or does not consider the
    number of steps."""
    if outcome.report is None:
        return True
    finding = next((f for f in outcome.fired("curve-overfitting")), None)
    if finding is None or not outcome.report.next_studies or outcome.report.deferral_reason(finding):
        return False
    before = outcome.report.spec
    for spec in (n.spec for n in outcome.report.next_studies):
        changed = [
            n
            for n, p in spec.parameters.items()
            if parameter_kinds.is_regulariser(n) and p.searched and not _is_within(p, before.parameters.get(n))
        ]
        if not changed:
            continue
        p = spec.parameters[changed[0]]
        old = before.parameters[changed[0]].high if changed[0] in before.parameters else None
        none = p.low == 0 or 0 in p.options or (p.scale == "log" and (p.low or 1) <= 0.01 * (old or 1))
        return len(changed) > 1 or not none or not any("steps" in note for note in spec.notes)
    return True


def _edge_and_flat_study(random: Random) -> SimulatedStudy:
    """Return a study whose best learning rates lie at an end of the range, and whose curves are flat for most of their length."""
    store, steps = Store(), int(random.choice([2_000, 20_000]))
    at = steps * np.arange(1, 61) // 60
    for _ in range(int(random.integers(14, 31))):
        u = random.random()
        cost = 0.5 + 0.4 * (1.15 - u) ** 2 + 0.004 * random.standard_normal()
        fall = 1.5 * np.exp(-at / steps * random.uniform(20, 30))
        metrics: dict[str, Metric] = {
            "val_loss": (at, cost + fall + 0.002 * random.standard_normal(60)),
            "train_loss": (at, cost - 0.02 + fall + 0.002 * random.standard_normal(60)),
            "learning_rate": (at, np.full(60, 1e-4 * 1e3**u)),
        }
        store.log({"lr": float(1e-4 * 1e3**u), "weight_decay": float(10 ** random.uniform(-6, -2))}, metrics)
    return loss_study(store)


_OF_LENGTH = re.compile(r"fewer steps|[Ss]horten|[Ll]engthen the|decay at|rain for [\d,]+ steps|schedule")


def _mixes_goals(outcome: Outcome) -> bool:
    """Return whether the first next study has notes about the length of training, although it changes only other things."""
    if outcome.report is None or len(outcome.report.next_studies) == 0:
        return True
    spec = outcome.report.next_studies[0].spec
    same = (spec.max_train_steps, spec.schedule) == (outcome.report.spec.max_train_steps, outcome.report.spec.schedule)
    return same and any(_OF_LENGTH.search(note) for note in spec.notes)


FINAL = 20_000


def _study_of_short_runs(random: Random) -> SimulatedStudy:
    """Return a well explored study of short runs; the length of the final training is also known."""
    made = _explored_space(random)
    spec: StudySpec = made.arguments["spec"]
    return SimulatedStudy(
        made.experiment,
        {
            "spec": spec.model_copy(
                update={"final_train_steps": FINAL, "sampler": spec.sampler.model_copy(update={"kind": "adaptive"})}
            )
        },
    )


def _skips_best_settings(outcome: Outcome) -> bool:
    """Return whether the long runs of the next study do not repeat the best settings of the short runs, or lack a schedule."""
    if outcome.report is None:
        return True
    long = [n.spec for n in outcome.report.next_studies if n.spec.max_train_steps == FINAL]
    if not long:  # the length or a different range has to be changed first
        return not outcome.report.next_studies[0].spec.goal.startswith(
            ("Shorten", "Lengthen", "Narrow", "Widen", "Search higher", "Search lower", "Repeat")
        )
    from advisor.planning.sampling.halton import draw_trials

    tried = [dict(t.params) for _, t in outcome.report.ranked[:6]]
    runs = [trial for spec in long for trial in draw_trials(spec, spec.trials or 1)]
    names = outcome.report.spec.searched
    known = all(any(all(np.isclose(r[n], t[n]) for n in names) for t in tried) for r in runs)
    distinct = len({tuple(r[n] for n in names) for r in runs}) == len(runs)
    return not (known and distinct and all(spec.schedule for spec in long))


def _explored_space(random: Random) -> SimulatedStudy:
    """Return a study that has explored its space: 1 or 2 hyperparameters, many trials, the optimum well inside, little noise."""
    axes = int(random.integers(1, 3))
    count = int(random.integers(24, 61))
    params, at = settings(random, count, axes)
    optimum = random.uniform(0.4, 0.6, axes)
    costs = 0.5 + 0.08 * ((at - optimum) ** 2).sum(1) + 0.002 * random.standard_normal(count)
    ends: dict[str, tuple[float, float, bool]] = {next(iter(params[0])): (1e-4, 0.1, True), **OTHERS}
    space = {n: Parameter(low=ends[n][0], high=ends[n][1], scale="log" if ends[n][2] else "linear") for n in params[0]}
    aim = Objective(metric="val_loss", direction="minimize")
    spec = StudySpec(
        study="s",
        objective=aim,
        parameters={**space, "batch_size": Parameter(role="fixed", value=64)},
        trials=count,
        max_train_steps=2_000,
    )
    return SimulatedStudy(store_of_trials(random, params, costs, steps=2_000).experiment(), {"spec": spec})


def _does_not_exploit(outcome: Outcome) -> bool:
    """Return whether the first next study does not exploit, although nothing about the study needs to change."""
    if outcome.report is None or not outcome.report.next_studies:
        return True
    first = outcome.report.next_studies[0].spec
    if any(f.severity != "note" or f.goal == "sampling" for f in outcome.fired()) or first.goal.startswith("Shorten"):
        return False
    return first.sampler.kind != "adaptive"


# --- the same step everywhere ---------------------------------------------------------------------------------------------------


def _plans_any_study(random: Random) -> SimulatedStudy:
    makers = (
        _noise_study,
        _single_setting_study(None, (1, 1)),
        _single_setting_study(None, (3, 6)),
        _study_of_six_hyperparameters,
        _overfitting_study,
        _edge_and_flat_study,
        _explored_space,
        _study_of_short_runs,
    )
    return makers[random.integers(len(makers))](random)


def _headline_differs(outcome: Outcome) -> bool:
    """Return whether the report's headline does not name the step of the first next study, or that step has no known verb."""
    from advisor.report.text.headline import headline

    if outcome.report is None or not outcome.report.next_studies:
        return outcome.report is None
    goal = outcome.report.next_studies[0].spec.goal
    step = goal.partition(":")[0]
    return step.split()[0] not in VERBS or not str(headline(outcome.report)).startswith(step)


SITUATIONS: tuple[Situation, ...] = (
    Situation("E01 pure noise, 6 to 20 trials", "exploits, or deploys the best setting", _noise_study, _exploits_or_deploys),
    Situation("E01 pure noise, 6 to 20 trials", "the study's cost or use is unsaid", _noise_study, _lacks_cost),
    *(
        Situation(
            f"E02 one run, {kind}",
            "no sweep of the rate at a tenth",
            _single_setting_study(kind, (1, 1)),
            _plans_no_sweep,
            studies=20,
        )
        for kind in _KINDS
    ),
    Situation(
        "E02 one setting, 2 to 6 seeds", "no sweep of the rate at a tenth", _single_setting_study(None, (2, 6)), _plans_no_sweep
    ),
    Situation(
        "E02 one run, rate not logged",
        "the report does not ask for the rate",
        _single_setting_study(None, (1, 1), rate=False),
        _asks_no_question,
    ),
    Situation("E06 overfitting", "several regularisers, no none, or no steps", _overfitting_study, _changes_too_much),
    Situation(
        "E09 12 trials of 6 hyperparameters",
        "no study of the two that matter",
        _study_of_six_hyperparameters,
        _offers_no_subset_search,
    ),
    Situation(
        "E10 long runs after short ones", "untested settings, or no schedule", _study_of_short_runs, _skips_best_settings
    ),
    Situation("E12 any of these", "headline and first study differ", _plans_any_study, _headline_differs),
    Situation("E13 range and length", "notes of later studies in the first", _edge_and_flat_study, _mixes_goals),
    Situation("E14 a clear effect, 6 to 20 trials", "the next study drops the hyperparameter", _effect_study, _ignores_effect),
    Situation("E14 explored, optimum inside", "the best setting is not sought", _explored_space, _does_not_exploit),
)

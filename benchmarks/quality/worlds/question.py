"""Situations about the question of a study: scientific and unimportant hyperparameters, fair comparisons, regularisers that are
always on."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from advisor.model.spec import Parameter
from worlds.responses import COMPARED, make_study, nuisances, response
from worlds.world import Outcome, Random, SimulatedStudy, Situation

QUESTION = "scientific-effect"
SWITCHES = ("use_ema", "pre_norm", "bias", "nesterov")


# --- the question ---------------------------------------------------------------------------------------------------------------


def comparison_studies(
    trials: tuple[int, ...],
    *,
    worse: float = 0.0,
    values: tuple[int, int] = (2, 2),
    shifted: bool = False,
    conditional: bool = False,
) -> Callable[[Random], SimulatedStudy]:
    """Return a generator of studies that compare the values of one hyperparameter; all other hyperparameters are random.

    worse: difference between the best results of the last value and of the others, in between-seed standard deviations. shifted:
    best learning rates differ between values. conditional: the first value has an additional hyperparameter that matters.
    """

    def make(random: Random) -> SimulatedStudy:
        n, k = int(random.choice(trials)), int(random.integers(values[0], values[1] + 1))
        others = nuisances(random, int(random.integers(2, 5)))
        name, labels = _compared_values(random, k)
        groups = np.arange(n) % k if random.random() < 0.5 else random.integers(k, size=n)
        at = random.random((n, len(others)))
        optimum = np.tile(random.uniform(0.25, 0.75, len(others)), (k, 1))
        if shifted:
            optimum[:, 0] = np.clip(optimum[:, 0] + random.uniform(-0.3, 0.3, k), 0.2, 0.8)
        weights = np.array([1.0, *random.uniform(0.02, 0.5, len(others) - 1)])
        costs = response(random, at, optimum[groups], weights)
        params = [
            {name: labels[g], **{o: p.draw(float(u)) for (o, p), u in zip(others.items(), row, strict=True)}}
            for g, row in zip(groups.tolist(), at, strict=True)
        ]
        if conditional:
            own = random.random(n)
            costs = costs + np.where(groups == 0, 0.3 * (own - random.uniform(0.3, 0.7)) ** 2, 0)
            for p, g, u in zip(params, groups.tolist(), own.tolist(), strict=True):
                if g == 0:
                    p["momentum"] = 0.5 + 0.45 * u
        seed = float(costs.std()) / random.uniform(8, 40)
        scale = 0.3 / float(costs.std())
        best = random.uniform(0.05, 0.6)
        costs = best + scale * (costs + seed * (worse * (groups == k - 1) + random.standard_normal(n)))
        space = None
        if random.random() < 0.3 and not conditional:
            role = Parameter(role="scientific", choices=tuple(labels))
            space = {name: role, **others}
        return make_study(random, params, costs, {"name": name, "worse": str(labels[-1])}, space)

    return make


def _compared_values(random: Random, k: int) -> tuple[str, list[Any]]:
    if k == 2 and random.random() < 0.3:
        return str(random.choice(SWITCHES)), random.permutation([True, False]).tolist()
    name = str(random.choice(list(COMPARED)))
    return name, random.permutation(list(COMPARED[name]))[:k].tolist()


def verdicts(outcome: Outcome) -> list[Any]:
    """Return the findings that state a difference between values of the scientific hyperparameter."""
    return [
        f for f in outcome.fired(QUESTION) if f.subject == outcome.made.truth["name"] and "No difference" not in str(f.message)
    ]


def lacks_answer(outcome: Outcome) -> bool:
    """Return whether the report does not name the worse value, or gives no interval for the difference."""
    worse = outcome.made.truth["worse"].lower()
    messages = [str(f.message) for f in verdicts(outcome)]
    return not any(worse in text.lower() and re.search(r"interval", text) for text in messages)


def false_answer(outcome: Outcome) -> bool:
    return bool(verdicts(outcome))


def gives_no_reason(outcome: Outcome) -> bool:
    """Return whether the report has neither a finding about the question nor a reason why the question cannot be answered."""
    return not outcome.fired(QUESTION) and outcome.status(QUESTION) != "not-assessed"


def question_fixed(outcome: Outcome) -> bool:
    """Return whether the report calls the scientific hyperparameter unimportant."""
    return any(f.subject == outcome.made.truth["name"] for f in outcome.fired("space-insensitive"))


# --- fair comparisons -----------------------------------------------------------------------------------------------------------


def unfair_comparisons(kind: str) -> Callable[[Random], SimulatedStudy]:
    """Return a generator of studies with an unfair comparison: one value has bad learning rates, no result, or results at chance
    level.

    kind: "rates", "failed", "chance", or "fair" for the healthy twin.
    """

    def make(random: Random) -> SimulatedStudy:
        n = int(random.choice((24, 36, 48)))
        others = nuisances(random, int(random.integers(2, 4)))
        k = int(random.integers(2, 4))
        name, labels = _compared_values(random, k)
        groups = np.arange(n) % k
        at = random.random((n, len(others)))
        last = groups == k - 1
        optimum = random.uniform(0.25, 0.6, len(others))
        optimum[0] = random.uniform(0.3, 0.5)
        if kind == "rates":
            at[last, 0] = 0.75 + 0.25 * at[last, 0]
        weights = np.array([1.0, *random.uniform(0.02, 0.3, len(others) - 1)])
        costs = response(random, at, optimum, weights)
        costs = 0.3 + 0.3 * costs / float(costs[~last].std()) + 0.01 * random.standard_normal(n)
        stuck: list[float] = []
        if kind == "failed":
            costs[last & (random.random(n) < 0.95)] = np.nan
        if kind == "chance":
            level = float(np.log(random.choice((2, 10, 100)))) + 1e-3 * random.standard_normal(n)
            chance = last & (random.random(n) < 0.95)
            costs = np.where(chance, level, 0.9 * level.min() * (1 - np.exp(-costs / level.min())))
            stuck = costs[chance].tolist()
        params = [
            {name: labels[g], **{o: p.draw(float(u)) for (o, p), u in zip(others.items(), row, strict=True)}}
            for g, row in zip(groups.tolist(), at, strict=True)
        ]
        return make_study(random, params, costs, {"name": name, "worse": str(labels[-1])}, flat_costs=stuck)

    return make


def unfairness_missed(outcome: Outcome) -> bool:
    name, worse = outcome.made.truth["name"], outcome.made.truth["worse"].lower()
    messages = [str(f.message).lower() for f in outcome.fired("unfair-comparison") if f.subject == name]
    return not any(worse in text for text in messages)


def unfairness_invented(outcome: Outcome) -> bool:
    return any(f.subject == outcome.made.truth["name"] for f in outcome.fired("unfair-comparison"))


# --- what matters ---------------------------------------------------------------------------------------------------------------


def studies_of_many(
    trials: tuple[int, ...], count: int, *, shares: tuple[float, ...] | None = None
) -> Callable[[Random], SimulatedStudy]:
    """Return a generator of studies of `count` hyperparameters. The truth of the study holds each hyperparameter's share of the
    variance of results.

    These shares include interactions. shares: approximate shares of the first hyperparameters; the others have no effect.
    """

    def make(random: Random) -> SimulatedStudy:
        n = int(random.choice(trials))
        others = nuisances(random, count)
        optimum = random.uniform(0.1, 0.9, count)
        weights = random.lognormal(0, 1.2, count) if shares is None else np.zeros(count)
        if shares is not None:
            order = random.permutation(count)
            flat = random.random((4000, count)) - optimum
            for axis, share in zip(order.tolist(), shares, strict=False):
                weights[axis] = np.sqrt(share) / float((flat[:, axis] ** 2).std())
        noise = float(random.uniform(0.05, 0.4))
        draws = random.random((4000, count))
        spread = float((weights * (draws - optimum) ** 2).sum(1).std())
        true = np.array([float((w * (draws[:, i] - optimum[i]) ** 2).var()) for i, w in enumerate(weights)])
        true = true / (spread**2 * (1 + noise**2))
        at = random.random((n, count))
        costs = (weights * (at - optimum) ** 2).sum(1) + noise * spread * random.standard_normal(n)
        params = [{o: p.draw(float(u)) for (o, p), u in zip(others.items(), row, strict=True)} for row in at]
        shown = 0.5 + 0.3 * (costs - costs.min()) / float(costs.std())
        return make_study(random, params, shown, dict(zip(others, true.tolist(), strict=True)), others)

    return make


def fixes_what_matters(share: float) -> Callable[[Outcome], bool]:
    """Return a function that returns whether the report calls a hyperparameter unimportant that explains at least this share of the
    variation."""
    return lambda outcome: any(outcome.made.truth[str(f.subject)] >= share for f in outcome.fired("space-insensitive"))


def keeps_what_does_not(outcome: Outcome) -> bool:
    """Return whether the report identifies none of the hyperparameters that have no effect."""
    return not any(outcome.made.truth[str(f.subject)] <= 0.02 for f in outcome.fired("space-insensitive"))


# --- regularisers and features --------------------------------------------------------------------------------------------------

STRONG: Mapping[str, Parameter] = {
    "dropout": Parameter(low=0.5, high=0.95),
    "weight_decay": Parameter(low=1e-2, high=1.0, scale="log"),
    "label_smoothing": Parameter(low=0.3, high=0.8),
    "model.attn_dropout": Parameter(low=0.4, high=0.9),
}


def regularised_studies(*, strong: bool) -> Callable[[Random], SimulatedStudy]:
    """Return a generator of studies that search a regulariser: from no effect upwards or, with `strong`, only at strengths that
    hurt.

    The optimizer is SGD, for which a weight decay of 0.01 is strong; for Adam, this value is ordinary.
    """

    def make(random: Random) -> SimulatedStudy:
        n = int(random.choice((16, 20, 24, 36)))
        name = str(random.choice(list(STRONG)))
        domain = STRONG[name]
        if not strong:
            high = float(random.uniform(0.3, 0.6))
            domain = Parameter(low=1e-6, high=1e-1, scale="log") if domain.scale == "log" else Parameter(low=0.0, high=high)
        rate = Parameter(low=1e-4, high=1e-1, scale="log")
        at = random.random((n, 2))
        costs = (at[:, 0] - random.uniform(0.3, 0.7)) ** 2 + random.choice((0.1, 0.5, 1.0)) * at[:, 1]
        if not strong:
            costs = (at[:, 0] - 0.5) ** 2 + 0.5 * (at[:, 1] - random.uniform(0.3, 0.7)) ** 2
        costs = 0.4 + costs + 0.02 * random.standard_normal(n)
        params = [{"optimizer": "sgd", "lr": rate.draw(float(a)), name: domain.draw(float(b))} for a, b in at]
        space = {"lr": rate, name: domain} if random.random() < 0.5 else None
        return make_study(random, params, costs, {"name": name}, space)

    return make


def none_left_out(outcome: Outcome) -> bool:
    """Return whether the report lacks the advice to extend the range down to no regularisation."""
    advised = [f for f in outcome.fired("regulariser-floor") if f.subject == outcome.made.truth["name"] and f.changes]
    return not advised


def none_asked_for(outcome: Outcome) -> bool:
    return bool(outcome.fired("regulariser-floor"))


SITUATIONS: tuple[Situation, ...] = (
    Situation(
        "D01 one value 10 sd worse, 24 trials",
        "not named with an interval",
        comparison_studies((24,), worse=10),
        lacks_answer,
        0.1,
    ),
    Situation(
        "D01 one value 10 sd worse, 48 trials",
        "not named with an interval",
        comparison_studies((48,), worse=10),
        lacks_answer,
        0.1,
    ),
    Situation(
        "D01 one of 3 to 6 values 10 sd worse",
        "not named with an interval",
        comparison_studies((36, 48), worse=10, values=(3, 6)),
        lacks_answer,
        0.1,
    ),
    Situation(
        "D01 one value 10 sd worse, each with its rate",
        "not named with an interval",
        comparison_studies((24, 48), worse=10, shifted=True),
        lacks_answer,
        0.1,
    ),
    Situation("D02 no difference", "a difference is stated", comparison_studies((24, 48)), false_answer),
    Situation(
        "D02 no difference, each with its best rate",
        "a difference is stated",
        comparison_studies((24, 48), shifted=True),
        false_answer,
    ),
    Situation(
        "D02 no difference, 3 to 6 values", "a difference is stated", comparison_studies((24, 48), values=(3, 6)), false_answer
    ),
    Situation(
        "D02 no difference, conditional", "a difference is stated", comparison_studies((24, 48), conditional=True), false_answer
    ),
    Situation("D03 no difference", "no answer and no reason", comparison_studies((12, 24, 48)), gives_no_reason),
    Situation("D04 one value 10 sd worse", "it is called unimportant", comparison_studies((24, 48), worse=10), question_fixed),
    Situation("D04 no difference", "it is called unimportant", comparison_studies((24, 48)), question_fixed),
    *(
        Situation(f"D05 one value {what}", "unfairness is missed", unfair_comparisons(kind), unfairness_missed, 0.1)
        for kind, what in (("rates", "only high rates"), ("failed", "failed"), ("chance", "at chance"))
    ),
    Situation("D06 a fair comparison", "called unfair", unfair_comparisons("fair"), unfairness_invented),
    Situation(
        "D07 8 hyperparameters, 24 to 36 trials",
        "one with 10 % of the variance is called unimportant",
        studies_of_many((24, 30, 36), 8),
        fixes_what_matters(0.1),
    ),
    Situation(
        "D07 one with 36 % of the variance",
        "it is called unimportant",
        studies_of_many((16, 24, 36), 5, shares=(0.6, 0.36)),
        fixes_what_matters(0.3),
    ),
    Situation(
        "D08 three of five without effect",
        "none is found",
        studies_of_many((48, 60), 5, shares=(0.6, 0.36)),
        keeps_what_does_not,
        0.3,
    ),
    Situation(
        "D09 regulariser only where it is strong",
        "no advice to include zero",
        regularised_studies(strong=True),
        none_left_out,
        0.1,
    ),
    Situation("D10 regulariser from none on", "advice to include zero", regularised_studies(strong=False), none_asked_for),
)

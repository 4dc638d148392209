"""Situations about the roles of hyperparameters in the next study: compared, tuned, fixed, derived or unchanged."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from advisor.model.space import FloatArray, HyperparameterValue, IntArray
from advisor.model.spec import Objective, Parameter, StudySpec
from worlds.responses import COMPARED, curve, nuisances, response
from worlds.world import Metric, Outcome, Random, SimulatedStudy, Situation, Store

BATCHES = ("batch_size", "train_batch_size", "per_device_train_batch_size", "data.batch_size", "bs", "global_batch_size")
SHAPES: Mapping[str, Parameter] = {
    "depth": Parameter(type="int", low=2, high=8),
    "num_layers": Parameter(type="int", low=1, high=5),
    "model.n_layers": Parameter(type="int", low=2, high=12),
    "kernel_size": Parameter(type="int", choices=(3, 5, 7, 9)),
    "num_attention_heads": Parameter(type="int", choices=(2, 4, 8, 16)),
    "width": Parameter(type="int", low=32, high=512, scale="log"),
    "hidden_size": Parameter(type="int", low=64, high=2048, scale="log"),
    "model.hidden_dim": Parameter(type="int", choices=(64, 128, 256, 512)),
    "n_units": Parameter(type="int", low=16, high=256),
    "filters": Parameter(type="int", choices=(16, 32, 64)),
    "d_model": Parameter(type="int", low=128, high=1024, scale="log"),
    "mlp_ratio": Parameter(type="int", choices=(1, 2, 4, 8)),
}
"""Numeric hyperparameters of an architecture, with the ranges or values that the studies search."""


# --- stores ---------------------------------------------------------------------------------------------------------------------


def log_trials(
    random: Random,
    params: Sequence[Mapping[str, Any]],
    costs: FloatArray,
    constants: Sequence[Mapping[str, float]] = (),
    ends: IntArray | None = None,
) -> tuple[Store, str, str]:
    """Return a store of these trials, and the name and direction of the objective.

    constants: constant metrics, such as the throughput, that a trial logs at every evaluation. ends: last step of each trial.
    """
    store, accuracy = Store(), random.random() < 0.5
    name = str(random.choice(("val_acc", "eval/accuracy") if accuracy else ("val_loss", "valid/loss")))
    for i, (chosen, cost) in enumerate(zip(params, costs.tolist(), strict=True)):
        last = 2_000 if ends is None else int(ends[i])
        at = np.arange(1, 11) * last // 10
        values = curve(random, cost)
        loss = values + 0.02 * random.standard_normal(10)
        metrics: dict[str, Metric] = {name: (at, 0.95 * np.exp(-values) if accuracy else values), "train_loss": (at, loss)}
        for metric, value in (constants[i] if constants else {}).items():
            metrics[metric] = (at, value * np.exp(0.02 * random.standard_normal(10)))
        store.log(chosen, metrics)
    return store, name, "maximize" if accuracy else "minimize"


def make_study(
    store: Store, objective: str, direction: str, truth: Mapping[str, Any], space: Mapping[str, Parameter] | None = None
) -> SimulatedStudy:
    """Return the study in the store, with a study file if `space` is passed."""
    arguments: dict[str, Any] = {"objective": objective, "direction": direction}
    if space is not None:
        goal = Objective(metric=objective, direction="maximize" if direction == "maximize" else "minimize")
        arguments = {"spec": StudySpec(study="experiment", objective=goal, parameters=space)}
    return SimulatedStudy(store.experiment(), arguments, truth)


def scale_costs(random: Random, costs: FloatArray) -> FloatArray:
    """Scale costs to a usual magnitude, and add noise between seeds."""
    noise = float(costs.std()) / random.uniform(4, 30)
    costs = costs + noise * random.standard_normal(len(costs))
    return np.asarray(random.uniform(0.1, 0.5) + 0.3 * (costs - costs.min()) / max(float(costs.std()), 1e-9))


def settings_at(space: Mapping[str, Parameter], at: FloatArray) -> list[dict[str, HyperparameterValue]]:
    """Return the settings at these positions (n, d) in the space."""
    return [{n: p.draw(float(u)) for (n, p), u in zip(space.items(), row, strict=True)} for row in at]


def position(parameter: Parameter, value: HyperparameterValue) -> float:
    return float(parameter.to_positions([value])[0])


# --- what follows ---------------------------------------------------------------------------------------------------------------


def following_studies(outcome: Outcome) -> Iterator[StudySpec]:
    """Yield the next studies in the report, including those that a probe prepares."""
    for study in outcome.report.next_studies if outcome.report is not None else ():
        spec: StudySpec | None = study.spec
        while spec is not None:
            yield spec
            spec = spec.baseline


def text_of(spec: StudySpec) -> str:
    return " ".join([spec.goal, *spec.notes, *(p.why or "" for p in spec.parameters.values())]).lower()


def too_few_trials(spec: StudySpec) -> bool:
    """Return whether a study has fewer trials than one of its hyperparameters has values to choose from."""
    return any(len(p.options) > (spec.trials or 1) for p in spec.searched.values())


# --- batch size -----------------------------------------------------------------------------------------------------------------


def batches(how: str) -> Callable[[Random], SimulatedStudy]:
    """Return a generator of studies that search the batch size with the learning rate.

    how: "ints" from a range, "list" for powers of two, or "file" for a range in a study file.
    """

    def make(random: Random) -> SimulatedStudy:
        n, name = int(random.choice((12, 20, 36))), str(random.choice(BATCHES))
        low = int(2 ** random.integers(3, 7))
        high = low * int(2 ** random.integers(2, 5))
        sizes = tuple(2**i for i in range(low.bit_length() - 1, high.bit_length()))
        scale = "log" if random.random() < 0.6 else "linear"
        own = Parameter.model_validate({"type": "int", "low": low, "high": high, "scale": scale})
        own = Parameter(type="int", choices=sizes) if how == "list" else own
        space = {**nuisances(random, int(random.integers(1, 4))), name: own}
        at = random.random((n, len(space)))
        params = settings_at(space, at)
        size = np.array([float(p[name]) for p in params])
        shift = (np.log(size) - np.log(size).mean()) / 12
        optimum = np.tile(random.uniform(0.3, 0.7, len(space)), (n, 1))
        optimum[:, 0] = np.clip(optimum[:, 0] + shift, 0.05, 0.95)
        weights = np.array([1.0, *random.uniform(0.02, 0.3, len(space) - 2), random.choice((0.0, 0.05, 0.4))])
        costs = scale_costs(random, response(random, at, optimum, weights))
        fast = random.random() < 0.4
        speed = [{"train/examples_per_s": 900 * s / (s + low)} for s in size.tolist()] if fast else []
        store = log_trials(random, params, costs, speed)
        return make_study(*store, {"name": name, "sizes": size.tolist()}, space if how == "file" else None)

    return make


def batch_searched(outcome: Outcome) -> bool:
    """Return whether a next study draws batch sizes from a range, or uses a batch size that is not a power of two or is far from
    those of all trials."""
    if outcome.report is None:
        return True
    name, tried = outcome.made.truth["name"], outcome.made.truth["sizes"]
    for spec in following_studies(outcome):
        p = spec.parameters.get(name)
        if spec.seeds and not spec.searched:  # this study repeats a trial exactly
            continue
        if p is None or p.numeric or too_few_trials(spec):
            return True
        for value in p.options or (p.value,):
            size = float(value or 0)
            if not math.log2(max(size, 0.1)).is_integer() or not min(tried) / 2 <= size <= max(tried) * 2:
                return True
    return False


def throughput_unmentioned(outcome: Outcome) -> bool:
    """Return whether the first next study does not say that throughput decides the batch size."""
    return not any("throughput" in text_of(spec) for spec in list(following_studies(outcome))[:1])


# --- architecture ---------------------------------------------------------------------------------------------------------------


def architecture_studies(how: str, *, declared: str = "") -> Callable[[Random], SimulatedStudy]:
    """Return a generator of studies that search one or two numbers of the architecture with the learning rate.

    how: "more" is better, "none" has an effect, or "inside" for an optimum inside the range. declared: the role of these numbers
    in a study file; empty if there is no study file.
    """

    def make(random: Random) -> SimulatedStudy:
        n, count = int(random.choice((16, 24, 40))), int(random.integers(1, 3))
        names = random.permutation(list(SHAPES))[:count].tolist()
        shapes = {s: SHAPES[s] for s in names}
        space = {**nuisances(random, int(random.integers(1, 4))), **shapes}
        at = random.random((n, len(space)))
        params = settings_at(space, at)
        for column, name in enumerate(list(space)):
            at[:, column] = [position(space[name], p[name]) for p in params]
        optimum = random.uniform(0.3, 0.7, len(space))
        weights = np.array([1.0, *random.uniform(0.02, 0.3, len(space) - 1)])
        first = len(space) - count
        optimum[first:] = 1.2 if how == "more" else random.uniform(0.3, 0.7, count)
        weights[first:] = 0.0 if how == "none" else random.uniform(0.3, 1.0, count)
        store = log_trials(random, params, scale_costs(random, response(random, at, optimum, weights)))
        tried = {s: (min(float(p[s]) for p in params), max(float(p[s]) for p in params)) for s in names}
        file = {s: p.model_copy(update={"role": declared}) if s in shapes else p for s, p in space.items()}
        return make_study(*store, {"tried": tried, "scientific": declared == "scientific"}, file if declared else None)

    return make


def architecture_widened(outcome: Outcome) -> bool:
    """Return whether a next study tunes a number of the architecture as a nuisance hyperparameter, or exceeds the values that the
    user asked for."""
    if outcome.report is None:
        return True
    tried = outcome.made.truth["tried"]
    for spec in following_studies(outcome):
        for name, used in tried.items():
            p = spec.parameters.get(name)
            if p is None or (p.searched and p.role == "nuisance") or too_few_trials(spec):
                return True
            low, high = _range_asked_for(outcome, name, used)
            values = [v for v in (p.low, p.high, p.value, *p.options) if v is not None]
            if not all(low <= float(v) <= high for v in values):
                return True
    return any(f.subject in tried for f in outcome.fired("space-boundary") if _is_widening(f))


def _range_asked_for(outcome: Outcome, name: str, used: tuple[float, float]) -> tuple[float, float]:
    """Return the range in the study file or, if there is no study file, the range of values that trials used."""
    asked = SHAPES[name] if outcome.made.arguments.get("spec") else None
    return used if asked is None or asked.low is None or asked.high is None else (asked.low, asked.high)


def _is_widening(finding: Any) -> bool:
    return any(change.kind == "set-range" for change in finding.changes)


def question_dropped(outcome: Outcome) -> bool:
    """Return whether the first next study does not compare the scientific hyperparameters, although no finding has settled them."""
    answered = {f.subject for f in outcome.fired("scientific-effect") if any(c.kind == "fix" for c in f.changes)}
    names = [n for n in outcome.made.truth["tried"] if n not in answered]
    specs = list(following_studies(outcome))[:1]
    return not specs or any(specs[0].parameters[n].role != "scientific" for n in names)


# --- scientific choices ---------------------------------------------------------------------------------------------------------


def questions(effect: float) -> Callable[[Random], SimulatedStudy]:
    """Return a generator of studies that compare a choice or a few numbers. effect: loss of the worse value, in between-seed
    standard deviations."""

    def make(random: Random) -> SimulatedStudy:
        n = int(random.choice((12, 20, 30)))
        others = nuisances(random, int(random.integers(2, 5)))
        if random.random() < 0.6:
            name = str(random.choice([c for c in COMPARED if c != "optimizer"]))
            own = Parameter(role="scientific", choices=tuple(random.permutation(COMPARED[name])[:3].tolist()))
        elif random.random() < 0.5:
            name, own = "use_ema", Parameter(role="scientific", type="bool")
        else:
            name, own = "augment_strength", Parameter(role="scientific", choices=(0.0, 0.5, 1.0))
        others.pop(name, None)
        space = {**others, name: own}
        at = random.random((n, len(space)))
        params = settings_at(space, at)
        last = np.array([p[name] == own.options[-1] for p in params])
        weights = np.array([1.0, *random.uniform(0.02, 0.3, len(space) - 2), 0.0])
        costs = response(random, at, random.uniform(0.3, 0.7, len(space)), weights)
        noise = float(costs.std()) / random.uniform(4, 30)
        costs = costs + noise * (random.standard_normal(n) + effect * last)
        store = log_trials(random, params, 0.2 + 0.3 * (costs - costs.min()) / float(costs.std()))
        return make_study(*store, {"tried": {name: (0, 0)}}, space)

    return make


# --- what is still widened ------------------------------------------------------------------------------------------------------


def rate_beyond_range(random: Random) -> SimulatedStudy:
    """Return a study that searches learning rate, batch size and architecture, and whose best learning rate lies beyond its
    range."""
    n = int(random.choice((36, 48)))
    shape, batch = str(random.choice(list(SHAPES))), str(random.choice(BATCHES))
    space = {**nuisances(random, 2), shape: SHAPES[shape], batch: Parameter(type="int", choices=(16, 32, 64, 128))}
    at = random.random((n, len(space)))
    optimum = np.array([random.choice((-0.3, 1.3)), 0.5, 0.5, 0.5])
    params = settings_at(space, at)
    store = log_trials(random, params, scale_costs(random, response(random, at, optimum, np.array([1.0, 0.1, 0.1, 0.05]))))
    rate = next(iter(space))
    side = "low" if optimum[0] < 0 else "high"
    return make_study(*store, {"rate": rate, "side": side, "range": (space[rate].low, space[rate].high)})


def not_widened(outcome: Outcome) -> bool:
    """Return whether no next study extends the range of the learning rate at the end where the optimum lies."""
    rate, side, (low, high) = (outcome.made.truth[k] for k in ("rate", "side", "range"))
    ranges = [p for s in following_studies(outcome) if (p := s.parameters[rate]).numeric]
    return not any((p.low or 0) < low / 2 if side == "low" else (p.high or 0) > 2 * high for p in ranges)


_WIDER = "drawn from a range, or no power of two"
_ASKED = "tuned, or beyond the asked values"
SITUATIONS: tuple[Situation, ...] = (
    Situation("E20 batch size drawn from whole numbers", _WIDER, batches("ints"), batch_searched),
    Situation("E20b batch size from a list", _WIDER, batches("list"), batch_searched),
    Situation("E20c batch size as a range in the study file", _WIDER, batches("file"), batch_searched),
    Situation("E20d batch size searched with the rate", "throughput is not named", batches("ints"), throughput_unmentioned),
    Situation("E21 more depth or width is better", _ASKED, architecture_studies("more"), architecture_widened),
    Situation("E21b architecture without effect", _ASKED, architecture_studies("none"), architecture_widened),
    Situation("E21c best architecture inside", _ASKED, architecture_studies("inside"), architecture_widened),
    Situation(
        "E21d architecture in the study file", _ASKED, architecture_studies("more", declared="nuisance"), architecture_widened
    ),
    Situation("E23 a question without effect", "no longer compared", questions(0.0), question_dropped),
    Situation("E23b a question with a small effect", "no longer compared", questions(1.5), question_dropped),
    Situation(
        "E23c the architecture is the question",
        "no longer compared",
        architecture_studies("none", declared="scientific"),
        question_dropped,
    ),
    Situation("E26n the rate's optimum lies beyond", "not widened", rate_beyond_range, not_widened, bound=0.15),
)

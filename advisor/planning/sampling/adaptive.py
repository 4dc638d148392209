"""Draws trials based on earlier results: Bayesian optimisation with Optuna's Gaussian process, the playbook's choice to exploit.

Playbook: "Exploration vs exploitation". A suggestion depends only on the study's seed and its earlier trials, so any launcher can
compute it at any time.

Median regret of the best trial on 4 kinds of noisy surfaces with 3 to 6 hyperparameters, half of them with a cliff beyond which
trials fail (12 Halton trials, then 24 adaptive trials in batches of 1 or 4; 8 studies for each kind):

| sampler | median regret |
| Gaussian process | 0.001 to 0.12 |
| multivariate TPE | 0.009 to 0.20 |
| Halton, twice as many trials | 0.014 to 0.27 |
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from advisor.model.errors import AdvisorError
from advisor.model.space import Value
from advisor.model.spec import StudySpec
from advisor.planning.sampling import halton as quasirandom

MIN_RESULTS = 10
"""Minimum number of trials with a result for adaptive suggestions; with fewer, the Halton sequence is continued."""
_MAX_REFUSED = 20
"""Maximum number of consecutive suggestions in forbidden regions."""


@dataclass(frozen=True, slots=True)
class Observation:
    """A trial that has started, with its result so far."""

    params: Mapping[str, Value]
    value: float | None = None
    """Value of the objective. If it is None or not finite and the trial has ended, the trial has failed."""
    running: bool = False
    """Whether the trial is still running; if so, `value` is ignored."""

    @property
    def feasible(self) -> bool:
        """Whether the trial ended with a finite value."""
        return not self.running and self.value is not None and math.isfinite(self.value)


def suggest(
    spec: StudySpec, history: Sequence[Observation], count: int = 1, *, number: int | None = None
) -> list[dict[str, Value]]:
    """Return the next `count` trials of a study, each as {parameter: value}, like `halton.sample`.

    history: earlier trials in the space, from any sampler. Failed trials count as infeasible, so the model learns where trials fail
    (Gelbart et al., "Bayesian Optimization with Unknown Constraints", 2014). For running trials and for earlier suggestions of the
    same call, the model's prediction replaces the result. number: 0-based index of the first trial in the Halton sequence, while
    it continues; default is the length of the history. Equal study, history (in order) and number yield equal trials. Raises
    AdvisorError if Optuna is missing.
    """
    observations: list[Observation] = list(history)
    first = len(observations) if number is None else number
    out: list[dict[str, Value]] = []
    for i in range(count):
        out.append(_suggest(spec, observations, first + i))
        observations.append(Observation(out[-1], running=True))
    return out


def check() -> None:
    """Raise AdvisorError if Optuna or PyTorch is not installed."""
    with _optuna():
        pass


def _suggest(spec: StudySpec, history: Sequence[Observation], number: int) -> dict[str, Value]:
    if sum(p.feasible for p in history) < MIN_RESULTS or not spec.searched:
        return _explored(spec, number)
    with _optuna() as optuna:
        space = {name: _distribution(optuna, spec, name) for name in sorted(spec.searched)}
        study, worst = _optuna_study(optuna, spec, history, space)
        for _ in range(_MAX_REFUSED):
            asked = study.ask(space)
            trial = quasirandom.trial_at(spec, [_drawn(spec, name, asked.params[name]) for name in space])
            if spec.forbids(trial) is None:
                return trial
            asked.set_constraint("feasible", 1.0)
            study.tell(asked, worst)
    return _explored(spec, number)


def _explored(spec: StudySpec, number: int) -> dict[str, Value]:
    """Return the trial with this index in the study's Halton sequence."""
    halton = spec.sampler.model_copy(update={"kind": "halton"})
    return next(quasirandom.sample(spec.model_copy(update={"sampler": halton}), 1, skip=number))


def _optuna_study(
    optuna: Any, spec: StudySpec, history: Sequence[Observation], space: Mapping[str, Any]
) -> tuple[Any, float]:
    """Return (a minimising Optuna study with the history, the worst cost); failed trials get the worst cost."""
    sign = 1.0 if spec.objective.direction == "minimize" else -1.0
    costs = {i: sign * p.value for i, p in enumerate(history) if p.feasible and p.value is not None}
    worst = max(costs.values())
    seed = int(np.random.SeedSequence((spec.sampler.seed, len(history))).generate_state(1)[0])
    study = optuna.create_study(sampler=optuna.samplers.GPSampler(seed=seed, n_startup_trials=0))
    states = optuna.trial.TrialState
    for i, observation in enumerate(history):
        result = (
            {}
            if observation.running
            else {"value": costs.get(i, worst), "constraints": {"feasible": float(i not in costs)}}
        )
        trial = optuna.trial.create_trial(
            state=states.RUNNING if observation.running else states.COMPLETE,
            params={name: _position(spec, name, observation.params.get(name)) for name in space},
            distributions=dict(space),
            **result,
        )
        study.add_trial(trial)
    return study, worst


def _distribution(optuna: Any, spec: StudySpec, name: str) -> Any:
    """Return Optuna's distribution of a hyperparameter: its position in the range on its scale, or the index of its choice."""
    parameter = spec.parameters[name]
    if parameter.numeric:
        return optuna.distributions.FloatDistribution(0.0, 1.0)
    return optuna.distributions.CategoricalDistribution(range(len(parameter.options)))


def _position(spec: StudySpec, name: str, value: Value | None) -> float | int:
    """Return the position of a value. If the trial lacks the hyperparameter, return the middle of the range or the first choice."""
    parameter = spec.parameters[name]
    if not parameter.numeric:
        return 0 if value is None else parameter.options.index(value)
    return 0.5 if value is None else float(np.clip(parameter.to_unit([value])[0], 0.0, 1.0))


def _drawn(spec: StudySpec, name: str, position: float) -> float:
    """Convert a position to the interval [0, 1) for `Domain.draw`."""
    parameter = spec.parameters[name]
    return min(float(position), 1 - 1e-12) if parameter.numeric else (position + 0.5) / len(parameter.options)


@contextmanager
def _optuna() -> Iterator[Any]:
    """Yield the module `optuna` with its logging disabled. Raises AdvisorError if Optuna or PyTorch is not installed."""
    try:
        import optuna
        from optuna.samplers._gp import sampler  # noqa: F401  (needs PyTorch)
    except ImportError as error:
        raise AdvisorError(f'the adaptive sampler needs {error.name}: pip install "tuning-advisor[adaptive]"') from None
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", category=FutureWarning)
            yield optuna
    finally:
        optuna.logging.set_verbosity(level)

"""Creates the jobs of a study. A job trains one trial with one seed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from advisor.model.errors import AdvisorError
from advisor.model.space import HyperparameterValue
from advisor.model.spec import StudySpec
from advisor.planning.sampling.halton import draw_trials

JobKey: TypeAlias = tuple[int, int]
"""Key that identifies a job within its study: (trial number, repeat number)."""
SEEDS_PER_ROUND = 1000


@dataclass(frozen=True, slots=True)
class Job:
    """A training run: one trial of the study with one seed."""

    number: int
    """Number of the trial in the sampler's sequence, starting at 0."""
    repeat: int
    """Number of the repeat: 0 for the first run of the trial; 1, 2, ... for repeats with other seeds."""
    seed: int
    params: Mapping[str, HyperparameterValue]

    @property
    def name(self) -> str:
        return job_name(self.key, self.seed - self.repeat if self.repeat else 0)

    @property
    def key(self) -> JobKey:
        return (self.number, self.repeat)

    def params_json(self) -> str:
        return json.dumps(dict(self.params))


def jobs(spec: StudySpec, trials: int | None = None, *, first_seed: int = 0) -> tuple[Job, ...]:
    """Return all jobs of the study. trials: number of trials; None for the number in the study file."""
    drawn_trials = list(draw_trials(spec, trial_count(spec, trials)))
    return tuple(
        Job(number, repeat, job_seed(spec, (number, repeat), first_seed), params)
        for repeat in range(spec.seeds or 1)
        for number, params in enumerate(drawn_trials)
    )


def job_seed(spec: StudySpec, key: JobKey, first_seed: int) -> int:
    """Return the random seed of a job. Without repeats, each trial has a different seed: with a common seed, a setting could be
    the best only because it suits this seed. With repeats, all trials have the same seeds."""
    number, repeat = key
    return first_seed + (number if (spec.seeds or 1) == 1 else repeat)


def default_seed(spec: StudySpec) -> int:
    """Return the default first seed of a study. The default differs between rounds, so that no trial is repeated exactly."""
    return SEEDS_PER_ROUND * (spec.round - 1)


def trial_count(spec: StudySpec, trials: int | None) -> int:
    """Return `trials`, or the number of trials in the study file if `trials` is None. Raises AdvisorError if both are None."""
    count = trials if trials is not None else spec.trials
    if count is None:
        raise AdvisorError(f"study {spec.study!r} does not say how many trials it has; pass --trials")
    return count


def job_name(key: JobKey, first_seed: int = 0) -> str:
    """Return the name of the MLflow run of a job. first_seed: first seed of the study's jobs."""
    return f"trial-{key[0]}" if key[1] == 0 else f"trial-{key[0]}-seed-{first_seed + key[1]}"

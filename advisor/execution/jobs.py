"""The trials of a study as jobs: what each one is given."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from advisor.model.errors import AdvisorError
from advisor.model.space import Value
from advisor.model.spec import StudySpec
from advisor.planning.sampling.halton import sample

Key: TypeAlias = tuple[int, int]
"""Number of a trial and which of its repeats: what tells a job from the study's others."""
SEEDS_A_ROUND = 1000


@dataclass(frozen=True, slots=True)
class Job:
    """One training: a trial of the study with one seed."""

    number: int
    """Of the trial, in the order of the sampler's sequence, from 0."""
    repeat: int
    """0 for the first training of the trial; 1, 2, ... for repeats with other seeds."""
    seed: int
    params: Mapping[str, Value]

    @property
    def name(self) -> str:
        """As the run is called."""
        return name_of(self.key, self.seed - self.repeat if self.repeat else 0)

    @property
    def key(self) -> Key:
        """What tells it from the study's other jobs."""
        return (self.number, self.repeat)

    def params_json(self) -> str:
        """The hyperparameters as one JSON object."""
        return json.dumps(dict(self.params))


def jobs(spec: StudySpec, trials: int | None = None, *, first_seed: int = 0) -> tuple[Job, ...]:
    """All jobs of the study: `trials` of them (None: as many as the study says), each with as many seeds as it says.

    Raises AdvisorError without a number.
    """
    drawn = list(sample(spec, counted(spec, trials)))
    return tuple(
        Job(number, repeat, seed_of(spec, (number, repeat), first_seed), params)
        for repeat in range(spec.seeds or 1)
        for number, params in enumerate(drawn)
    )


def seed_of(spec: StudySpec, key: Key, first_seed: int) -> int:
    """The seed of a job: each trial's own, lest the best trial be the one that the only seed suits.

    Trials that are repeated all have the same seeds: then they differ by their hyperparameters alone.
    """
    number, repeat = key
    return first_seed + (number if (spec.seeds or 1) == 1 else repeat)


def first_seed_of(spec: StudySpec) -> int:
    """The first seed of a study where nobody says: another one in each round, lest a trial be repeated as it was."""
    return SEEDS_A_ROUND * (spec.round - 1)


def counted(spec: StudySpec, trials: int | None) -> int:
    """How many trials; AdvisorError where nobody says."""
    count = trials if trials is not None else spec.trials
    if count is None:
        raise AdvisorError(f"study {spec.study!r} does not say how many trials it has; pass --trials")
    return count


def name_of(key: Key, first_seed: int = 0) -> str:
    """As the run of a job is called whose study's first seed is this."""
    return f"trial-{key[0]}" if key[1] == 0 else f"trial-{key[0]}-seed-{first_seed + key[1]}"

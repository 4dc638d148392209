"""Draws trials from a study's space: a scrambled, shifted Halton sequence, the playbook's choice for exploration.

Playbook: "Why use quasi-random search instead of more sophisticated black box optimization algorithms during the exploration phase
of tuning?". Scrambling and the random shift follow Bousquet et al., "Critical Hyper-Parameters: No Random, No Cry", 2017.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import count, islice

import numpy as np

from advisor.model import formula
from advisor.model.errors import AdvisorError
from advisor.model.space import FloatArray, Value
from advisor.model.spec import StudySpec
from advisor.stats.halton import Halton

MOST = 1_000_000
"""Trials in a sequence: more than any study has, few enough to skip them one by one."""


_PATIENCE = 1000
"""Points of the sequence in a row that may lie in forbidden regions; that many mean that the space is wrong."""
_AT_ONCE = 256


def sample(spec: StudySpec, count: int, *, skip: int = 0) -> Iterator[dict[str, Value]]:
    """`count` trials of the study, after the first `skip` of its sequence: {parameter: value}, fixed and derived ones included.

    The same study gives the same trials on every platform and whatever the order of its parameters; asking for more continues the
    sequence. A parameter whose condition (`when`) does not hold in a trial is left out of it, and points of the sequence that lie
    in a forbidden region are left out altogether. Where one list of choices is all that is searched, a Halton sequence goes round
    it: as many trials as there are choices train each of them once.
    """
    if count < 0 or skip < 0 or count + skip > MOST:
        raise AdvisorError(
            f"the numbers of trials to draw and to skip must not be negative, nor more than {MOST:,} together"
        )
    if spec.sampler.kind == "adaptive":
        raise AdvisorError(
            "an adaptive sampler draws each trial from the results so far: `advisor run` draws them as it goes along, and "
            "advisor.planning.sampling.adaptive.suggest does for results of your own"
        )
    searched = sorted(spec.searched)
    # Without regions nothing is left out, and the points that are skipped need not be looked at.
    first, left_out = (0, skip) if spec.forbidden else (skip, 0)
    return islice(_allowed(spec, searched, first), left_out, left_out + count)


def _allowed(spec: StudySpec, searched: list[str], first: int) -> Iterator[dict[str, Value]]:
    """The trials at the points of the sequence, from the point `first` on, that no region forbids."""
    refused = 0
    for position in _positions(spec, len(searched), first):
        trial = trial_at(spec, position)
        if spec.forbids(trial) is None:
            refused = 0
            yield trial
        elif (refused := refused + 1) == _PATIENCE:
            raise AdvisorError(
                f"the study's forbidden regions leave next to nothing of its space: {_PATIENCE:,} points in a row lie in them; "
                "search other ranges"
            )


def trial_at(spec: StudySpec, position: FloatArray | Sequence[float]) -> dict[str, Value]:
    """The trial at a position in the unit cube: a coordinate in [0, 1) for each searched parameter in the order of their names."""
    searched = sorted(spec.searched)
    fixed = {name: p.value for name, p in spec.parameters.items() if p.role == "fixed" and p.value is not None}
    drawn = {name: spec.parameters[name].draw(float(u)) for name, u in zip(searched, position, strict=True)}
    values = {**fixed, **drawn}
    single = {n: p.options[0] for n, p in spec.parameters.items() if n not in values and p.options}
    trial = spec.completed(_existing(spec, {**values, **single}))
    for name, parameter in spec.parameters.items():
        if parameter.formula is None or name in trial or not _exists(spec, name, trial):
            continue
        if formula.parse(parameter.formula).names <= trial.keys():
            raise AdvisorError(
                f"{name!r} has no finite value by its formula {parameter.formula!r} in the trial {json.dumps(trial)}"
            )
    return {name: trial[name] for name in spec.parameters if name in trial}


def _positions(spec: StudySpec, dimensions: int, first: int) -> Iterator[FloatArray]:
    """The points of the sequence from the one numbered `first` on, without end: shape (dimensions,) each, in [0, 1)."""
    rng = np.random.default_rng(spec.sampler.seed)
    if spec.sampler.kind == "random" or dimensions == 0:
        rng.random((first, dimensions))
        while True:
            yield from rng.random((_AT_ONCE, dimensions))
    choices = [p.options for p in spec.searched.values() if p.options]
    if dimensions == 1 and choices:
        order = (rng.permutation(len(choices[0])) + 0.5) / len(choices[0])
        for number in count(first):
            yield order[[number % len(order)]]
    shift = rng.random(dimensions)
    sequence = Halton(dimensions, rng)
    for start in count(first, _AT_ONCE):
        yield from (sequence.points(start, _AT_ONCE) + shift) % 1.0


def _existing(spec: StudySpec, values: dict[str, Value]) -> dict[str, Value]:
    """The parameters that exist in this trial, in the order of the study file."""
    present: dict[str, Value] = {}
    for name in spec.parameters:
        if name in values and _exists(spec, name, values):
            present[name] = values[name]
    return present


def _exists(spec: StudySpec, name: str, values: dict[str, Value]) -> bool:
    conditions = spec.parameters[name].when or {}
    return all(values.get(parent) == wanted and _exists(spec, parent, values) for parent, wanted in conditions.items())

"""Draws trials from a study's space: a scrambled, shifted Halton sequence, the playbook's choice for exploration.

Playbook: "Why use quasi-random search instead of more sophisticated black box optimization algorithms during the exploration phase
of tuning?". Scrambling and the random shift follow Bousquet et al., "Critical Hyper-Parameters: No Random, No Cry", 2017.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from advisor.errors import AdvisorError
from advisor.space import FloatArray, Value
from advisor.spec import StudySpec

MOST = 1_000_000
"""Trials in a sequence: more than any study has, few enough to skip them one by one."""


def sample(spec: StudySpec, count: int, *, skip: int = 0) -> Iterator[dict[str, Value]]:
    """`count` trials of the study, after the first `skip` of its sequence: {parameter: value}, fixed parameters included.

    The same study gives the same trials on every platform and whatever the order of its parameters; asking for more continues the
    sequence. A parameter whose condition (`when`) does not hold in a trial is left out of it.
    """
    if count < 0 or skip < 0 or count + skip > MOST:
        raise AdvisorError(
            f"the numbers of trials to draw and to skip must not be negative, nor more than {MOST:,} together"
        )
    searched = sorted(spec.searched)
    fixed = {name: p.value for name, p in spec.parameters.items() if p.role == "fixed" and p.value is not None}
    for position in _positions(spec, len(searched), count, skip):
        drawn = {name: spec.parameters[name].draw(float(u)) for name, u in zip(searched, position, strict=True)}
        values = {**fixed, **drawn}
        single = {n: p.options[0] for n, p in spec.parameters.items() if n not in values and p.options}
        yield _existing(spec, {**values, **single})


def _positions(spec: StudySpec, dimensions: int, count: int, skip: int) -> FloatArray:
    """Shape (count, dimensions), each in [0, 1)."""
    if dimensions == 0:
        return np.empty((count, 0))
    rng = np.random.default_rng(spec.sampler.seed)
    if spec.sampler.kind == "random":
        return rng.random((skip + count, dimensions))[skip:]
    from scipy.stats import qmc

    shift = rng.random(dimensions)
    sequence = qmc.Halton(dimensions, scramble=True, rng=rng)
    sequence.fast_forward(skip)
    return np.asarray((sequence.random(count) + shift) % 1.0, dtype=np.float64)


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

"""Which job comes next: from a list that is known beforehand, or one by one from the results so far."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Protocol

from advisor.execution.claims import State
from advisor.execution.jobs import Job, Key, counted, jobs, seed_of
from advisor.execution.record import Entry, Outcome, as_logged
from advisor.model.space import Value, same
from advisor.model.spec import Parameter, StudySpec
from advisor.planning.sampling import adaptive
from advisor.planning.sampling.adaptive import Observation
from advisor.tracking.study.inference import parse_value

_ASK_AGAIN_S = 15.0
"""How long to leave a job alone whose launcher is silent."""

Entries = Callable[[], Sequence[Entry]]


class Source(Protocol):
    """The jobs of a study, one after another."""

    total: int
    """How many there are."""

    def next(self, entries: Entries, most: int = 1) -> Sequence[Job]:
        """The jobs to begin now, `most` at most; none where there is none. `entries` reads what was begun so far."""

    def refused(self, job: Job, state: State) -> None:
        """That a job was not to be had, being in this state."""

    def again(self, job: Job) -> None:
        """That a job is to be begun again."""

    def waits(self) -> bool:
        """Whether there may be a job later though there is none now."""


def check(spec: StudySpec, trials: int | None) -> None:
    """Raises AdvisorError where nobody says how many trials there are, or what draws them is not installed."""
    counted(spec, trials)
    if spec.sampler.kind == "adaptive":
        adaptive.check()


def source_of(
    spec: StudySpec, trials: int | None, *, first_seed: int, earlier: Callable[[], Sequence[Entry]]
) -> Source:
    """The jobs of a study: `trials` of them (None: as many as the study says), with as many seeds each as it says.

    earlier: reads the trials of its parent, for samplers that learn. Raises AdvisorError as `check` does.
    """
    if spec.sampler.kind != "adaptive":
        return Listed(jobs(spec, trials, first_seed=first_seed))
    return Adaptive(spec, counted(spec, trials), first_seed, known_of(spec, earlier()))


class Listed:
    """Jobs that are all known."""

    def __init__(self, all_jobs: Sequence[Job]) -> None:
        self.total = len(all_jobs)
        self._waiting = deque(all_jobs)
        self._silent: deque[tuple[float, Job]] = deque()

    def next(self, entries: Entries, most: int = 1) -> Sequence[Job]:  # noqa: ARG002
        """In their order; those whose launcher was silent are asked for again, last."""
        if not self._waiting:
            now = time.monotonic()
            while self._silent and self._silent[0][0] <= now:
                self._waiting.append(self._silent.popleft()[1])
        return [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]

    def refused(self, job: Job, state: State) -> None:
        """Forgotten, unless it may be free before long."""
        if state == "silent":
            self._silent.append((time.monotonic() + _ASK_AGAIN_S, job))

    def again(self, job: Job) -> None:
        """First of all."""
        self._waiting.appendleft(job)

    def waits(self) -> bool:
        """Whether some launcher is silent, or a job is to be begun again."""
        return bool(self._waiting or self._silent)


class Adaptive:
    """Jobs that follow from results: those of this study, whichever launcher had them, and those of its parent."""

    def __init__(self, spec: StudySpec, trials: int, first_seed: int, earlier: Sequence[Observation]) -> None:
        self._spec, self._trials, self._seed, self._earlier = spec, trials, first_seed, earlier
        self._repeats = spec.seeds or 1
        self.total = trials * self._repeats
        self._ask_at, self._silent, self._again = 0.0, False, False

    def next(self, entries: Entries, most: int = 1) -> Sequence[Job]:  # noqa: ARG002
        """The first that nobody has; all repeats of a trial before the next trial."""
        if time.monotonic() < self._ask_at:
            return ()
        begun = {entry.key: entry for entry in entries()}
        self._silent, self._again = any(entry.state == "silent" for entry in begun.values()), False
        taken = {key for key, entry in begun.items() if entry.state != "open"}
        free = ((n, r) for n in range(self._trials) for r in range(self._repeats) if (n, r) not in taken)
        key = next(free, None)
        if key is None:
            self._ask_at = time.monotonic() + _ASK_AGAIN_S
            return ()
        number, repeat = key
        params = self._params(number, begun) if repeat else None
        if params is None:
            history = [*self._earlier, *self._history(begun, number)]
            (params,) = adaptive.suggest(self._spec, history, number=len(self._earlier) + number)
        return (Job(number, repeat, seed_of(self._spec, key, self._seed), params),)

    def refused(self, job: Job, state: State) -> None:
        """It will be seen among what was begun."""

    def again(self, job: Job) -> None:  # noqa: ARG002
        """So will that it is open, at once."""
        self._ask_at, self._again = 0.0, True

    def waits(self) -> bool:
        """Whether some launcher is silent, or a job that is to be begun again was not asked for yet."""
        return self._silent or self._again

    def _params(self, number: int, begun: Mapping[Key, Entry]) -> dict[str, Value] | None:
        first = begun.get((number, 0))
        return None if first is None else in_space(self._spec, first.params)

    def _history(self, begun: Mapping[Key, Entry], number: int) -> Iterable[Observation]:
        """The study's trials so far, in their order, but for the one that is to be suggested."""
        for n in range(self._trials):
            found = [begun[n, r] for r in range(self._repeats) if (n, r) in begun and begun[n, r].state != "open"]
            params = in_space(self._spec, found[0].params) if found and n != number else None
            if params is None:
                continue
            ended = [entry.outcome for entry in found if entry.outcome is not None]
            yield Observation(params, _value(ended), running=len(ended) < self._repeats)


def known_of(spec: StudySpec, entries: Iterable[Entry]) -> list[Observation]:
    """Trials of another study as history of this one: those that lie in its space."""
    read = ((in_space(spec, entry.params), entry.outcome) for entry in entries)
    return [
        Observation(params, _value([outcome])) for params, outcome in read if params is not None and outcome is not None
    ]


def _value(outcomes: Sequence[Outcome]) -> float | None:
    """The mean over a trial's trainings; None where one of them failed: a setting that may fail is not one to ship."""
    values = [o.best for o in outcomes if o.best is not None and o.status in ("complete", "stopped")]
    return fmean(values) if values and len(values) == len(outcomes) else None


def in_space(spec: StudySpec, texts: Mapping[str, str]) -> dict[str, Value] | None:
    """A trial's hyperparameters from the texts that MLflow keeps; None where they do not lie in the study's space."""
    found: dict[str, Value] = {}
    for name, parameter in spec.parameters.items():
        if name not in texts:
            continue
        value = _typed(parameter, texts[name])
        if value is None:
            return None
        found[name] = value
    missing = [n for n, p in spec.parameters.items() if n not in found and p.role != "derived" and _exists(p, found)]
    return None if missing or spec.forbids(found) is not None else found


def _exists(parameter: Parameter, found: Mapping[str, Value]) -> bool:
    return all(found.get(parent) == wanted for parent, wanted in (parameter.when or {}).items())


def _typed(parameter: Parameter, text: str) -> Value | None:
    """The value that a text stands for; None where the parameter cannot have it."""
    allowed = (parameter.value,) if parameter.role == "fixed" and parameter.value is not None else parameter.options
    known = parse_value(text)
    if allowed:
        said = (v for v in allowed if as_logged(v) == text or (known is not None and same(known, v)))
        return next(said, None)
    if known is None or isinstance(known, bool | str) or (parameter.type == "int" and not isinstance(known, int)):
        return None
    value = known if parameter.type == "int" else float(known)
    return value if parameter.role == "derived" or (parameter.numeric and parameter.contains(value)) else None

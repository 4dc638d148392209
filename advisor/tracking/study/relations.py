"""Finds hyperparameters that follow from others (tokens = steps x batch size, min_lr = lr / 10), and lengths of training with
unusual names. A relation must hold in nearly all trials, and in more than independent hyperparameters show by chance."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from advisor.model.parameter_kinds import belongs_to_optimizer, is_batch_size, is_regulariser
from advisor.model.space import (
    BoolArray,
    FloatArray,
    HyperparameterValue,
    IntArray,
    Params,
    as_number,
    is_learning_rate,
    is_training_length,
    words_of_name,
)

_MAX_P_VALUE = 0.01
"""Maximum probability, per study, that independent hyperparameters appear to be related."""
_MIN_AGREEING_TRIALS_FRACTION = 0.95
"""Minimum share of the trials in which a relation must hold."""
_MIN_DIFFERENT_VALUES = 3
"""Minimum different values of each hyperparameter in a relation."""
_MAX_RELATED_PARAMETERS = 40
"""With more varying numeric hyperparameters, relations of three are not tested."""
_RELATIVE_TOLERANCE = 1e-5
"""Numbers are rounded when they are logged."""
_FORMULA_TEST_TRIALS = 24, 192
"""Numbers of trials on which formulas are tested first."""
_TRIALS_TESTED_FIRST = 64
"""Number of trials on which we first test whether two hyperparameters determine a third."""
_TRAINING_LENGTH_WORDS = {*"tokens examples samples images frames steps iterations iters updates epochs epoch budget".split()}
_CANDIDATE_EXPONENTS = (1.0, -1.0, 2.0, -2.0, 0.5, -0.5)
_SUMMAND_SIGNS = (1.0, -1.0)
_EXPONENT_PAIRS = ((1.0, 1.0), (1.0, -1.0), (-1.0, 1.0), (-1.0, -1.0))


@dataclass(frozen=True, slots=True)
class DependentParameter:
    name: str
    determinants: tuple[str, ...]
    formula: str | None
    """Formula for a study file, or None if it is unknown."""


def find_dependent_parameters(params: Sequence[Params], keep: Collection[str] = ()) -> tuple[DependentParameter, ...]:
    """Return the hyperparameters that follow from others. Of related ones, the least important counts as dependent: lengths of
    training (tokens before steps), then regularisers, learning rates and batch sizes, unless the study file declares it
    (`keep`)."""
    numeric_values = _numeric_parameters(params)
    dependents: list[DependentParameter] = []
    for name in sorted(numeric_values, key=lambda n: (*_importance_rank(n), is_training_length(n), -len(n), n)):
        other_values = {n: v for n, v in numeric_values.items() if n != name and n not in {t.name for t in dependents}}
        if name not in keep and (dependent := _dependent_by_formula(name, numeric_values[name], other_values)) is not None:
            dependents.append(dependent)
    dependent_names = {t.name for t in dependents}
    levels = {n: c for n, c in _discrete_values(params).items() if n not in dependent_names}
    untested_names = [n for n in numeric_values if n not in dependent_names and n not in keep]
    dependents += [
        dependent for n in untested_names if has_unknown_role(n) and (dependent := _dependent_by_values(n, levels)) is not None
    ]
    return tuple(dependents)


def has_unknown_role(name: str) -> bool:
    """Return whether no common hyperparameter has such a name, so that only values can show its role."""
    return _importance_rank(name) <= (1,) and not belongs_to_optimizer(name)


def steps_per_unit(values: Sequence[HyperparameterValue | None], ends: Sequence[int]) -> float | None:
    """Return the steps per unit of a parameter that is the length of training, else None. ends: last logged step of each trial,
    shape (trials,), which can be below the stated length, but not above."""
    pairs = [(as_number(v), e) for v, e in zip(values, ends, strict=True) if _is_number(v) and as_number(v) > 0 and e >= 1]
    # Equal lengths have equal ends by design, so a pair that repeats the preceding pair is no evidence of a relation.
    pairs = [pair for i, pair in enumerate(pairs) if i == 0 or pair != pairs[i - 1]]
    if len({v for v, _ in pairs}) < _MIN_DIFFERENT_VALUES:
        return None
    length, end = np.array(pairs, dtype=np.float64).T
    # Steps may count from 0 or from 1. The right choice gives most trials the same, largest ratio of end to stated length.
    ratios = {o: np.max((end + o) / length) for o in (1, 0)}
    first_step_offset = max(ratios, key=lambda o: int(np.sum(np.abs(end + o - ratios[o] * length) < 0.5)))
    factor = float(ratios[first_step_offset])
    expected_ends = factor * length
    is_at_expected_end = np.abs(end + first_step_offset - expected_ends) <= np.maximum(1.0, 0.02 * expected_ends)
    chance_agreement = _chance_of_agreement(end, np.maximum(1.0, 0.02 * end))
    n, k = len(is_at_expected_end), int(is_at_expected_end.sum())
    has_enough_evidence = 2 * k >= n and len(set(length[is_at_expected_end].tolist())) >= _MIN_DIFFERENT_VALUES
    return factor if has_enough_evidence and special.bdtrc(k - 2, n - 1, chance_agreement) <= _MAX_P_VALUE else None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _numeric_parameters(params: Sequence[Params]) -> dict[str, FloatArray]:
    """Return hyperparameters with enough numbers as arrays of shape (trials,); NaN for a missing value."""
    names = sorted({n for p in params for n in p})
    columns = {}
    for name in names:
        values = [p.get(name) for p in params]
        if all(v is None or _is_number(v) for v in values) and len(set(values) - {None}) >= _MIN_DIFFERENT_VALUES:
            columns[name] = np.array([math.nan if v is None else float(v) for v in values])
    return columns


def _importance_rank(name: str) -> tuple[int]:
    """Return the importance of a hyperparameter, by its name; the lowest of related ones counts as dependent."""
    if is_training_length(name) or _TRAINING_LENGTH_WORDS & set(words_of_name(name)):
        return (0,)
    if is_batch_size(name):  # if a learning rate was scaled with the batch size, it depends on the batch size
        return (5,)
    if is_learning_rate(name):
        return (4,)
    if is_regulariser(name):
        return (3,)
    return (2,) if belongs_to_optimizer(name) and not {"lr", "rate"} & set(words_of_name(name)) else (1,)


def _dependent_by_formula(name: str, values: FloatArray, others: Mapping[str, FloatArray]) -> DependentParameter | None:
    tests = max(len(others) * (len(_CANDIDATE_EXPONENTS) + 2) + len(others) ** 2 * len(_EXPONENT_PAIRS), 1)
    is_known = np.isfinite(values)
    for parts, predict, text in _candidate_relations(values, others):
        are_both_known = is_known & np.isfinite(predict)
        if are_both_known.sum() < _MIN_AGREEING_TRIALS_FRACTION * is_known.sum():
            continue
        if _relation_holds(values[are_both_known], predict[are_both_known], tests):
            return DependentParameter(name, parts, text())
    return None


CandidateRelation = tuple[tuple[str, ...], FloatArray, Callable[[], str]]


def _candidate_relations(values: FloatArray, others: Mapping[str, FloatArray]) -> Iterator[CandidateRelation]:
    """Yield (other names, predicted values, formula) for each relation that the first trials do not contradict."""
    candidates = others
    for number in _FORMULA_TEST_TRIALS:
        powers, signs = _possible_relations(values, candidates, number)
        is_candidate: BoolArray = np.any(np.vstack([powers, signs]), axis=0)
        candidates = dict(itertools.compress(candidates.items(), is_candidate))
        powers, signs = powers[:, is_candidate], signs[:, is_candidate]
    for k, (other, x) in enumerate(candidates.items()):
        for power in itertools.compress(_CANDIDATE_EXPONENTS, powers[:, k]):
            yield from _product_of_powers(values, ((other, x, power),))
        for sign in itertools.compress(_SUMMAND_SIGNS, signs[:, k]):
            finite = (values - sign * x)[np.isfinite(values - sign * x)]
            if len(finite):
                shift = float(np.median(finite))
                yield (other,), shift + sign * x, _sum_text(shift, sign, other)
    if len(others) > _MAX_RELATED_PARAMETERS:
        return
    log_values = {n: _safe_log(x) for n, x in others.items()}
    own = _safe_log(values)
    for a, b in itertools.combinations(others, 2):
        for p, q in _EXPONENT_PAIRS:
            ratio = own - p * log_values[a] - q * log_values[b]
            finite = ratio[np.isfinite(ratio)]
            # The factor must be the same in most settings; testing a few of them first keeps the search fast.
            if len(finite) >= _MIN_DIFFERENT_VALUES and np.mean(np.abs(finite[:12] - np.median(finite[:12])) < 0.1) > 0.5:
                yield from _product_of_powers(values, ((a, others[a], p), (b, others[b], q)))


def _possible_relations(values: FloatArray, others: Mapping[str, FloatArray], number: int) -> tuple[BoolArray, BoolArray]:
    """Return masks of the formulas that the first `number` trials do not contradict: powers of each other hyperparameter, shape
    (powers, others), and sums with each, shape (signs, others). A thousand hyperparameters are too slow without this."""
    rows = np.flatnonzero(np.isfinite(values))
    rows = rows[np.unique(np.linspace(0, len(rows) - 1, number).astype(np.int64))]
    own = values[rows]
    x = np.array([column[rows] for column in others.values()]).reshape(len(others), len(rows))
    are_integers = bool((own == np.rint(own)).all())
    tolerance = 1e-3 * np.abs(own) + (np.where(np.abs(own) >= 20, 2.0, 1.0) if are_integers else 0.0)
    with np.errstate(all="ignore"):
        powers = [x**p for p in _CANDIDATE_EXPONENTS]
        products = [_mostly_agree(own, power * _row_medians(_finite_ratios(own / power)), tolerance) for power in powers]
        sums = [_mostly_agree(own, s * x + _row_medians(own - s * x), tolerance) for s in _SUMMAND_SIGNS]
    return np.array(products), np.array(sums)


def _finite_ratios(ratios: FloatArray) -> FloatArray:
    return np.where(np.isfinite(ratios) & (ratios != 0), ratios, np.nan)


def _row_medians(numbers: FloatArray) -> FloatArray:
    """Return the median of each row without NaN, shape (rows, 1); much faster than `np.nanmedian`."""
    ordered, count = np.sort(numbers, axis=1), np.isfinite(numbers).sum(axis=1, keepdims=True)  # NaN sort last
    middle_indices = np.hstack([(count - 1) // 2, count // 2])
    return np.asarray(np.take_along_axis(ordered, middle_indices, axis=1).mean(axis=1, keepdims=True))


def _mostly_agree(values: FloatArray, predicted: FloatArray, tolerance: FloatArray) -> BoolArray:
    is_agreeing_row: BoolArray = 2 * (np.abs(predicted - values) <= tolerance).sum(axis=1) >= len(values)
    return is_agreeing_row


def _safe_log(values: FloatArray) -> FloatArray:
    return np.log(np.where(values > 0, values, np.nan))


def _product_of_powers(values: FloatArray, parts: Sequence[tuple[str, FloatArray, float]]) -> Iterator[CandidateRelation]:
    with np.errstate(all="ignore"):
        product = np.prod([np.power(x, p) for _, x, p in parts], axis=0)
        ratio = values / product
        finite_ratios = ratio[np.isfinite(ratio) & (ratio != 0)]
        if not len(finite_ratios):
            return
        factor = float(np.median(finite_ratios))
    yield tuple(n for n, _, _ in parts), factor * product, lambda: _product_text(factor, parts)


def _product_text(factor: float, parts: Sequence[tuple[str, FloatArray, float]]) -> str:
    text = "" if math.isclose(factor, 1, rel_tol=_RELATIVE_TOLERANCE) else f"{_shorten_factor(factor):.12g}"
    for name, _, power in parts:
        size = abs(power)
        term = _formula_name(name) if size == 1 else f"{_formula_name(name)} ** {size:g}"
        text = (f"{text} * {term}" if text else term) if power > 0 else f"{text or '1'} / {term}"
    return text


def _sum_text(shift: float, sign: float, other: str) -> Callable[[], str]:
    return lambda: f"{_shorten_factor(shift):.12g} {'+' if sign > 0 else '-'} {_formula_name(other)}"


def _shorten_factor(factor: float) -> float:
    """Return the factor with the fewest digits: 0.1 for 0.0999999999."""
    rounded_factors = (float(f"{factor:.{digits}g}") for digits in range(1, 12))
    return next((r for r in rounded_factors if math.isclose(r, factor, rel_tol=_RELATIVE_TOLERANCE / 10)), factor)


def _formula_name(name: str) -> str:
    return name if name.isidentifier() and name.isascii() else f"{{{name}}}"


def _relation_holds(values: FloatArray, predicted: FloatArray, tests: int) -> bool:
    """Return whether nearly all trials are as predicted, beyond chance. Repeats of the preceding trial do not count."""
    is_new_pair = np.append(True, (np.diff(values) != 0) | (np.diff(predicted) != 0))
    values, predicted = values[is_new_pair], predicted[is_new_pair]
    n = len(values)
    are_integers = bool((values == np.rint(values)).all())
    tolerance = _RELATIVE_TOLERANCE * np.abs(values) + (np.where(np.abs(values) >= 20, 1.0, 0.5) if are_integers else 0.0)
    agreeing_count = int((np.abs(values - predicted) <= tolerance).sum())
    if agreeing_count < _MIN_AGREEING_TRIALS_FRACTION * n or n < _MIN_DIFFERENT_VALUES + 1:
        return False
    if len(set(predicted.tolist())) < _MIN_DIFFERENT_VALUES:
        return False
    return bool(special.bdtrc(agreeing_count - 2, n - 1, _chance_of_agreement(values, tolerance)) <= _MAX_P_VALUE / tests)


def _chance_of_agreement(values: FloatArray, tolerance: FloatArray) -> float:
    """Return the probability that the values of two random trials agree within the tolerance."""
    ordered = np.sort(values)
    width = float(np.median(tolerance))
    near_counts = np.searchsorted(ordered, ordered + 2 * width, "right") - np.searchsorted(ordered, ordered - 2 * width, "left")
    return float((near_counts.mean()) / len(ordered))


def _discrete_values(params: Sequence[Params]) -> dict[str, IntArray]:
    """Return each hyperparameter as indices into its different values, shape (trials,); -1 for a missing value."""
    discrete_by_name = {}
    for name in sorted({n for p in params for n in p}):
        index_by_value: dict[HyperparameterValue, int] = {}
        codes = [-1 if (v := p.get(name)) is None else index_by_value.setdefault(v, len(index_by_value)) for p in params]
        discrete_by_name[name] = np.array(codes, dtype=np.int64)
    return discrete_by_name


def _dependent_by_values(name: str, levels: Mapping[str, IntArray]) -> DependentParameter | None:
    """Return the hyperparameter as dependent if two with fewer values each determine it, as depth and width the weights."""
    rows = np.flatnonzero(levels[name] >= 0)
    values = levels[name][rows]
    known_by_name = {}
    for other, found in levels.items():
        codes = found[rows]
        if other == name or not (codes >= 0).all():
            continue
        value_count = codes.max() + 1 if len(rows) == len(found) else len(np.unique(codes))
        if 1 < value_count <= values.max():
            known_by_name[other] = codes
        if len(known_by_name) == _MAX_RELATED_PARAMETERS:
            break
    tests = max(math.comb(len(known_by_name), 2), 1)
    for one, two in _possible_pairs(values, known_by_name):
        keys = known_by_name[one] * (known_by_name[two].max() + 1) + known_by_name[two]
        if _keys_determine_values(keys, values, tests):
            return DependentParameter(name, (one, two), None)
    return None


def _possible_pairs(values: IntArray, discrete: Mapping[str, IntArray]) -> list[tuple[str, str]]:
    """Return the pairs of hyperparameters that may determine `values`, by a sample of trials."""
    if len(discrete) < 2:
        return []
    tested_trials = np.unique(np.linspace(0, len(values) - 1, _TRIALS_TESTED_FIRST).astype(np.int64))
    codes = np.array([c[tested_trials] for c in discrete.values()])
    first, second = np.triu_indices(len(tested_trials), 1)
    is_different = values[tested_trials][first] != values[tested_trials][second]
    is_equal_packed = np.packbits(codes[:, first[is_different]] == codes[:, second[is_different]], axis=1)
    conflicts: BoolArray = np.any(is_equal_packed[:, None] & is_equal_packed, axis=2)
    names = list(discrete)
    return [(names[a], names[b]) for a, b in itertools.combinations(range(len(names)), 2) if not conflicts[a, b]]


def _keys_determine_values(keys: IntArray, values: IntArray, tests: int) -> bool:
    """Return whether equal keys always have equal values, beyond chance. Repeats of the preceding trial do not count."""
    value_count = int(values.max()) + 1
    pairs = np.sort(keys * value_count + values)
    if ((np.diff(pairs) != 0) & (np.diff(pairs // value_count) == 0)).any():
        return False
    is_new_pair = np.append(True, (np.diff(keys) != 0) | (np.diff(values) != 0))
    keys, values = keys[is_new_pair], values[is_new_pair]
    shares = np.bincount(values) / len(values)
    repeated_count = len(keys) - len(np.unique(keys))
    return bool((shares**2).sum() ** repeated_count <= _MAX_P_VALUE / tests)

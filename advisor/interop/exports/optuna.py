"""A script that makes an Optuna study: its define-by-run space says all that a study file can."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import Any

from advisor.interop.exports.content import Past, Trials, constant, ends, line, reason, remarks
from advisor.model import formula
from advisor.model.spec import Bounds, Parameter, Region, StudySpec

_SAMPLERS = {
    "halton": 'QMCSampler(qmc_type="halton", scramble=True, seed={seed})',
    "random": "RandomSampler(seed={seed})",
    "adaptive": "TPESampler(multivariate=True, group=True, seed={seed})",
}
_CREATE = '''

def create(storage=None):
    """The study: new, or as it stands in `storage`."""
    study = optuna.create_study(
        study_name={name!r}, direction={direction!r}, storage=storage, load_if_exists=True,
        sampler=optuna.samplers.{sampler},
    )
    if study.trials:
        return study
    for params, value in PAST:
        study.enqueue_trial(params)
        trial = study.ask()
        try:
            suggest(trial)
        except optuna.TrialPruned:
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)
        else:
            study.tell(trial, value, state=None if value is not None else optuna.trial.TrialState.FAIL)
    for params in POINTS:
        study.enqueue_trial(params)
    return study


def objective(trial):
    params = suggest(trial)
    raise NotImplementedError({train!r})


if __name__ == "__main__":
    create().optimize(objective, n_trials={trials})
'''


def render(spec: StudySpec, points: Trials | None, past: Sequence[Past]) -> str:
    """The script; `past` are its trials so far, `points` those that it runs first."""
    return "\n".join(_lines(spec, points or (), past)) + "\n"


def _lines(spec: StudySpec, points: Trials, past: Sequence[Past]) -> Iterator[str]:
    yield from (f"# {remark}" for remark in remarks(spec))
    yield "import optuna"
    yield ""
    yield "# The trials so far: what Optuna drew them by, and the objective; None for those that failed."
    yield from _listed("PAST", [(_asked(spec, p.params), p.value) for p in past])
    yield "# Trials to run first."
    yield from _listed("POINTS", [_asked(spec, params) for params in points])
    yield ""
    yield ""
    yield "def suggest(trial):"
    yield '    """The hyperparameters of a trial."""'
    yield "    params = {}"
    for name in _ordered(spec):
        yield from _suggested(name, spec.parameters[name])
    for region in spec.forbidden:
        yield from _forbidden(region)
    yield "    return params"
    seed = spec.sampler.seed % 2**32
    yield _CREATE.format(
        name=spec.study,
        direction=spec.objective.direction,
        sampler=_SAMPLERS[spec.sampler.kind].format(seed=seed),
        train=line(f"train with params and return {spec.objective.metric}"),
        trials=spec.trials or len(points) or None,
    ).rstrip("\n")


def _listed(name: str, values: Sequence[Any]) -> Iterator[str]:
    if not values:
        yield f"{name} = []"
        return
    yield f"{name} = ["
    yield from (f"    {value!r}," for value in values)
    yield "]"


def _ordered(spec: StudySpec) -> list[str]:
    """The names such that each comes after those that it depends on."""
    waiting, order = list(spec.parameters), list[str]()
    while waiting:
        for name in waiting:
            parameter = spec.parameters[name]
            needed = set(parameter.when or {}) | (
                formula.parse(parameter.formula).names if parameter.formula else set()
            )
            if needed <= set(order):
                order.append(name)
                waiting.remove(name)
                break
    return order


def _suggested(name: str, parameter: Parameter) -> Iterator[str]:
    conditions = [f"params.get({parent!r}) == {wanted!r}" for parent, wanted in (parameter.when or {}).items()]
    if parameter.formula is not None:
        names = sorted(formula.parse(parameter.formula).names)
        conditions += [f"{other!r} in params" for other in names]
    margin = "    "
    if conditions:
        yield f"    if {' and '.join(conditions)}:"
        margin = "        "
    yield f"{margin}params[{name!r}] = {_drawn(name, parameter)}{reason(parameter)}"


def _drawn(name: str, parameter: Parameter) -> str:
    if parameter.formula is not None:
        computed = _computed(parameter.formula)
        return f"round({computed})" if parameter.type == "int" else computed
    if (only := constant(parameter)) is not None:
        return repr(only)
    if not parameter.numeric:
        return f"trial.suggest_categorical({name!r}, {list(parameter.options)!r})"
    low, high = ends(parameter)
    if parameter.scale == "reverse-log":
        return f"1 - trial.suggest_float({_left(name)!r}, {round(1 - high, 15)!r}, {round(1 - low, 15)!r}, log=True)"
    log = ", log=True" if parameter.scale == "log" else ""
    return f"trial.suggest_{parameter.type if parameter.type == 'int' else 'float'}({name!r}, {low!r}, {high!r}{log})"


def _left(name: str) -> str:
    """What Optuna draws for a hyperparameter on a reverse-log scale: what is left to one."""
    return f"1 - {name}"


def _computed(text: str) -> str:
    """The formula as Python: its names are looked up among the trial's hyperparameters."""

    class _Looked(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            return ast.Subscript(ast.Name("params", ast.Load()), ast.Constant(node.id), ast.Load())

    return ast.unparse(ast.fix_missing_locations(_Looked().visit(formula.parse(text).tree)))


def _forbidden(region: Region) -> Iterator[str]:
    holds = " and ".join(_within(f"params.get({name!r})", bounds) for name, bounds in region.where.items())
    yield f"    if {holds}:"
    yield f"        raise optuna.TrialPruned({line('forbidden: ' + (region.why or 'no trial is drawn from here'))!r})"


def _within(value: str, bounds: Bounds) -> str:
    if bounds.choices is not None:
        return f"{value} in {bounds.choices!r}"
    parts = [f"isinstance({value}, (int, float))"]
    parts += [f"{value} >= {bounds.low!r}"] if bounds.low is not None else []
    parts += [f"{value} <= {bounds.high!r}"] if bounds.high is not None else []
    return " and ".join(parts)


def _asked(spec: StudySpec, params: Any) -> dict[str, Any]:
    """Of a trial's hyperparameters what Optuna draws."""
    found = {}
    for name, parameter in spec.searched.items():
        if name in params:
            reverse = parameter.scale == "reverse-log"
            found[_left(name) if reverse else name] = round(1 - params[name], 15) if reverse else params[name]
    return found

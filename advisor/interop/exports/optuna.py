"""Writes a Python script that creates an Optuna study. Every study file can be exported, because the search space is code."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from advisor.interop.exports import search_spaces
from advisor.interop.exports.search_spaces import PastTrial, TrialParams
from advisor.model import formula
from advisor.model.spec import Bounds, Parameter, StudySpec

if TYPE_CHECKING:
    from advisor.interop.exports.optuna_pruner import GuardPruner

__all__ = ["GuardPruner", "render_optuna"]

_SAMPLER_CODE = {
    "halton": 'QMCSampler(qmc_type="halton", scramble=True, seed={seed})',
    "random": "RandomSampler(seed={seed})",
    "adaptive": "TPESampler(multivariate=True, group=True, seed={seed})",
}
_SCRIPT_TEMPLATE = '''

def create(storage=None):
    """Return the study from `storage`, or a new one."""
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
    # `advisor analyze` reads trials from MLflow. Add callbacks=[MLflowCallback(metric_name={metric!r})] of optuna-integration,
    # or store the trials by create("sqlite:///optuna.db") and run `advisor import optuna.db`.
    create().optimize(objective, n_trials={trials})
'''


def __getattr__(name: str) -> Any:
    if name == "GuardPruner":  # import only here, because exporting a study must work without Optuna
        from advisor.interop.exports.optuna_pruner import GuardPruner

        return GuardPruner
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def render_optuna(spec: StudySpec, points: TrialParams, past: Sequence[PastTrial]) -> str:
    return "\n".join(_script_lines(spec, points, past)) + "\n"


def _script_lines(spec: StudySpec, points: TrialParams, past: Sequence[PastTrial]) -> Iterator[str]:
    yield from search_spaces.study_comments(spec)
    yield "import optuna"
    yield ""
    yield "# Past trials: the values that Optuna would have drawn, and the objective (None if the trial failed)."
    past_params = [(_params_drawn_by_optuna(spec, p.params), p.value) for p in past]
    first_params = [_params_drawn_by_optuna(spec, params) for params in points]
    yield from ("PAST = [", *(f"    {trial!r}," for trial in past_params), "]") if past_params else ("PAST = []",)
    yield "# Trials to run first."
    yield from ("POINTS = [", *(f"    {params!r}," for params in first_params), "]") if first_params else ("POINTS = []",)
    yield ""
    yield ""
    yield "def suggest(trial):"
    yield '    """Return the hyperparameters of a trial."""'
    yield "    params = {}"
    for name in _names_after_their_parents(spec):
        yield from _suggestion_lines(name, spec.parameters[name])
    for region in spec.forbidden:
        reason = search_spaces.comment_line("forbidden: " + (region.why or "the study excludes this region"))
        tests = [test for name, limits in region.where.items() for test in _membership_tests(f"params.get({name!r})", limits)]
        yield f"    if {' and '.join(tests)}:"
        yield f"        raise optuna.TrialPruned({reason!r})"
    yield "    return params"
    seed = spec.sampler.seed % 2**32
    yield _SCRIPT_TEMPLATE.format(
        name=spec.study,
        direction=spec.objective.direction,
        sampler=_SAMPLER_CODE[spec.sampler.kind].format(seed=seed),
        train=search_spaces.comment_line(f"train with params and return {spec.objective.metric}"),
        metric=search_spaces.comment_line(spec.objective.metric),
        trials=spec.trials or len(points) or None,
    ).rstrip("\n")


def _names_after_their_parents(spec: StudySpec) -> list[str]:
    """Return the names of the parameters. Each parameter follows the parameters on which it depends."""

    def parents(parameter: Parameter) -> set[str]:
        parent_names = formula.parse_formula(parameter.formula).names if parameter.formula else ()
        return {*(parameter.when or {}), *parent_names}

    waiting, order = list(spec.parameters), list[str]()
    while waiting:
        name = next(name for name in waiting if parents(spec.parameters[name]) <= set(order))
        order.append(name)
        waiting.remove(name)
    return order


def _suggestion_lines(name: str, parameter: Parameter) -> Iterator[str]:
    conditions = [f"params.get({parent!r}) == {wanted!r}" for parent, wanted in (parameter.when or {}).items()]
    if parameter.formula is not None:
        conditions += [f"{other!r} in params" for other in sorted(formula.parse_formula(parameter.formula).names)]
    indent = "    "
    if conditions:
        yield f"    if {' and '.join(conditions)}:"
        indent = "        "
    yield f"{indent}params[{name!r}] = {_value_expression(name, parameter)}{search_spaces.reason_comment(parameter)}"


class _ParamsLookup(ast.NodeTransformer):
    """Rewrites a formula so that each hyperparameter is read from the dictionary `params`."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Subscript(ast.Name("params", ast.Load()), ast.Constant(node.id), ast.Load())


def _value_expression(name: str, parameter: Parameter) -> str:
    if parameter.formula is not None:
        tree = _ParamsLookup().visit(copy.deepcopy(formula.parse_formula(parameter.formula).syntax_tree))
        formula_code = ast.unparse(ast.fix_missing_locations(tree))
        return f"round({formula_code})" if parameter.type == "int" else formula_code
    if (value := search_spaces.only_possible_value(parameter)) is not None:
        return repr(value)
    if not parameter.numeric:
        return f"trial.suggest_categorical({name!r}, {list(parameter.options)!r})"
    low, high = search_spaces.parameter_bounds(parameter)
    if parameter.scale == "reverse-log":
        complement_name = f"1 - {name}"
        return f"1 - trial.suggest_float({complement_name!r}, {round(1 - high, 15)!r}, {round(1 - low, 15)!r}, log=True)"
    log = ", log=True" if parameter.scale == "log" else ""
    return f"trial.suggest_{'int' if parameter.type == 'int' else 'float'}({name!r}, {low!r}, {high!r}{log})"


def _membership_tests(value: str, limits: Bounds) -> list[str]:
    if limits.choices is not None:
        return [f"{value} in {limits.choices!r}"]
    low, high = limits.low, limits.high
    bounds = [*([f"{value} >= {low!r}"] if low is not None else []), *([f"{value} <= {high!r}"] if high is not None else [])]
    return [f"isinstance({value}, (int, float))", *bounds]


def _params_drawn_by_optuna(spec: StudySpec, params: Any) -> dict[str, Any]:
    """Return the values that Optuna would have drawn in a trial with the hyperparameters `params`."""
    drawn_params = {}
    for name, parameter in spec.searched.items():
        if name in params:
            is_reverse = parameter.scale == "reverse-log"
            drawn_params[f"1 - {name}" if is_reverse else name] = round(1 - params[name], 15) if is_reverse else params[name]
    return drawn_params

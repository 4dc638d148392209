"""Studies for the tests of exports, and checks of exported searches."""

import json

import pytest

from advisor.model.spec_yaml import parse_study_file

ODD = "it's \\ a 'word' \\'"
PLAIN = parse_study_file(
    f"""
study: "it's a \\"study\\" of ''' things"
goal: "first line\\nimport os"
objective: {{metric: val/loss, direction: minimize}}
parameters:
  optimizer: {{role: scientific, choices: [sgd, {json.dumps(ODD)}, "x,y)"], why: "both\\nused"}}
  learning_rate: {{low: 1e-3, high: 1, scale: log, why: the last round}}
  layers: {{type: int, low: 1, high: 4}}
  batch_size: {{type: int, low: 8, high: 256, scale: log}}
  dropout: {{low: 0, high: 0.5}}
  nesterov: {{type: bool}}
  width: {{role: fixed, value: 64}}
  name: {{role: fixed, value: "some: text"}}
trials: 20
max_train_steps: 1000
schedule: {{kind: cosine}}
notes: [keep the best checkpoint]
"""
)
FULL = parse_study_file(
    """
study: s
objective: {metric: val/loss, direction: maximize}
parameters:
  learning_rate: {role: derived, formula: "effective_learning_rate * (1 - {sgd/momentum})", when: {optimizer: sgd}}
  sgd/momentum: {low: 0.5, high: 0.999, scale: reverse-log, when: {optimizer: sgd}}
  effective_learning_rate: {low: 1e-3, high: 10, scale: log}
  optimizer: {choices: [sgd, adam]}
  batch_size: {role: derived, type: int, formula: 8 * layers}
  layers: {type: int, low: 1, high: 4}
forbidden:
  - where: {learning_rate: {low: 0.5}}
    why: diverged
  - where: {optimizer: {choices: [adam]}, effective_learning_rate: {low: 1}}
trials: 20
"""
)


def is_valid(spec, params):
    """Assert that a trial drawn by another tool belongs to the study."""
    for name, parameter in spec.parameters.items():
        if name in params and parameter.searched:
            assert parameter.contains(params[name]), (name, params[name])
    assert spec.forbidden_region_of(params) is None
    assert spec.with_computed_values(
        {n: v for n, v in params.items() if spec.parameters[n].role != "derived"}
    ) == pytest.approx(params)
    return True


def run_python(text):
    names = {"__name__": "exported"}
    exec(compile(text, "exported.py", "exec"), names)
    return names

"""What every rule owes: a page, documented thresholds, an id that matches its file, a test file, and no imports beyond its own."""

import ast
import importlib
import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from studies import make_study

from advisor.engine.judge import judge
from advisor.engine.pages import RuleExample, chapter_of_rule, example_path, load_example
from advisor.engine.registry import load_rules
from advisor.model.change import Advise
from advisor.model.spec import Parameter

CHECKOUT = Path(__file__).parents[1]
RULES = load_rules()
ALLOWED = ("advisor.engine.rule", "advisor.model.", "advisor.computed.", "advisor.stats.", "advisor.contract.")


def path_of(rule):
    return Path(sys.modules[type(rule).__module__].__file__)


@pytest.fixture(params=RULES, ids=lambda r: r.rule_id())
def rule(request):
    return request.param


def test_the_rules_of_the_main_job_are_there():
    wanted = (
        "space-boundary space-infeasible space-boundary-infeasible curve-overfitting curve-step-variance stability-edge "
        "stability-early stability-mid stability-spikes curve-saturated curve-still-improving steps-compute-bound step-position "
        "ckpt-best-lost"
    )
    assert set(wanted.split()) <= {r.rule_id() for r in RULES}


def test_the_page_has_its_headings(rule):
    for heading in ("## What it looks at", "## Why it matters", "## What to do"):
        assert heading in rule.page(), heading
    assert rule.summary().endswith(".")
    assert rule.playbook


def test_every_threshold_is_documented(rule):
    described = rule.threshold_docstrings()
    for name in type(rule).model_fields:
        assert described.get(name), f"{name} has no docstring"


def test_the_id_matches_the_file(rule):
    assert path_of(rule).stem == rule.rule_id().replace("-", "_")


def test_it_has_tests(rule):
    path = path_of(rule)
    assert (CHECKOUT / "tests/rules/advisor_rules" / path.parent.name / f"test_{path.stem}.py").is_file()


def example_of(module):
    """The module's example, from the seed of its generator: the same in any order of the tests, which find it as it was."""
    rng = getattr(module, "RNG", None)
    if rng is None:
        return module.example()
    state = rng.bit_generator.state
    rng.bit_generator.state = np.random.default_rng(rng.bit_generator.seed_seq).bit_generator.state
    study = module.example()
    rng.bit_generator.state = state
    return study


def make_example(study, finding):
    ranges = ", ".join(f"{name} ({p.low:g} to {p.high:g})" if p.numeric else name for name, p in study.searched.items())
    failed = int((study.ended & ~study.feasible).sum())
    trials = f"{len(study.trials)} trial{'s' * (len(study.trials) != 1)}" + f", {failed} of them failed" * (failed > 0)
    return RuleExample(
        study=f"{trials}; searched: {ranges or 'nothing'}; objective: {study.spec.objective.metric}",
        message=str(finding.message),
        action=str(finding.action),
        changes=tuple(describe(change) for change in finding.changes),
    )


def describe(change):
    if isinstance(change, Advise):
        return f"advise: {change.text}"
    fields = change.model_dump(mode="json", exclude={"kind", "why"}, exclude_defaults=True)
    return f"{change.kind}: " + ", ".join(f"{name} {value}" for name, value in fields.items())


def test_its_golden_example_is_fresh(rule):
    module = importlib.import_module(f"tests.{'.'.join(path_of(rule).parent.parts[-3:])}.test_{path_of(rule).stem}")
    study = example_of(module)
    (verdict,) = judge(study, [rule])
    made = make_example(study, verdict.findings[0])
    if os.environ.get("ADVISOR_TESTS") == "write":
        text = yaml.safe_dump(made.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=120)
        example_path(type(rule)).write_text(text, encoding="utf-8")
    assert load_example(type(rule)) == made, "run `make examples` and look at the difference"


def test_it_imports_only_what_a_rule_may(rule):
    for node in ast.walk(ast.parse(path_of(rule).read_text())):
        modules = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for module in modules:
            if module.startswith("advisor_rules"):
                package = type(rule).__module__.rpartition(".")[0]
                assert module == package or module.startswith(f"{package}._"), module
            elif module.startswith("advisor"):
                assert f"{module}.".startswith(ALLOWED), module
            else:
                assert module.split(".")[0] in {
                    "__future__",
                    "collections",
                    "math",
                    "typing",
                    "numpy",
                    "json",
                    "dataclasses",
                    "itertools",
                    "scipy",
                }


def test_the_overview_is_fresh():
    from advisor.engine.pages import rules_readme_text

    assert (CHECKOUT / "rules" / "README.md").read_text() == rules_readme_text(RULES), "run `make docs`"


ODD = {
    "one point": make_study([{"lr": 0.1}], {"val/loss": [[1.0]]}),
    "nothing finite": make_study(
        [{"lr": 0.1}, {"lr": 0.2}], {"val/loss": [[float("nan")] * 3] * 2, "train/loss": [[float("inf")] * 3] * 2}
    ),
    "all equal": make_study(
        [{"lr": 10.0**-i} for i in range(12)], {"val/loss": [[1.0] * 30] * 12, "train/loss": [[1.0] * 30] * 12}
    ),
    "huge": make_study([{"lr": 10.0**-i} for i in range(6)], {"val/loss": [[1e308, -1e308, 1e308, 0.0]] * 6}),
    "one step": make_study(
        [{"lr": 0.1 * i} for i in range(1, 9)], {"val/loss": [[float(i)] for i in range(8)], "train/grad_norm": [[1.0]] * 8}
    ),
    "negative steps": make_study([{"lr": 0.1}, {"lr": 0.2}], {"val/loss": [[3.0, 2.0, 1.0]] * 2}, steps=[-5, 0, 7]),
    "no params": make_study(
        [{}, {}], {"val/accuracy": [[0.1, 0.2], [0.2, 0.3]]}, objective="val/accuracy", direction="maximize"
    ),
    "words": make_study(
        [{"opt": "a"}, {"opt": "b"}, {"opt": "b"}], {"val/loss": [[1.0, 0.5]] * 3}, status=["infeasible", "complete", "stopped"]
    ),
}


@pytest.mark.parametrize("study", ODD.values(), ids=ODD.keys())
def test_no_odd_study_breaks_a_rule(study):
    for verdict in judge(study, RULES):
        assert verdict.status != "broken", f"{verdict.rule}: {verdict.reason}"


SETTING = {"learning_rate": 0.1, "weight_decay": 1e-4, "batch_size": 64, "optimizer": "sgd", "epochs": 10}
WITHOUT_COMPARISON = ("space-infeasible", "optimizer-rates")  # a failed trial or the declared space suffices for them
CURVE = [1 + 0.9**step for step in range(40)]


@pytest.mark.parametrize("space", [None, {"learning_rate": Parameter(low=0.01, high=1.0, scale="log")}])
@pytest.mark.parametrize("repeats", [1, 5])
def test_no_comparison_of_settings_passes_with_one_setting(repeats, space):
    curves = [[value + 0.01 * i for value in CURVE] for i in range(repeats)]
    study = make_study([SETTING] * repeats, {"val/loss": curves}, seeds=range(repeats), space=space)
    compare = [r for r in RULES if chapter_of_rule(r) in ("space", "decision") and r.rule_id() not in WITHOUT_COMPARISON]
    assert not [v.rule for v in judge(study, compare) if v.status == "quiet"]


def test_messages_are_sentences():
    steps = range(40)
    lrs = [10 ** (-4 + 0.2 * i) for i in range(16)]
    falling = [[2 * 0.9 ** (s * lr / lrs[7]) + 0.01 * ((s * 7919) % 5) for s in steps] for lr in lrs]
    study = make_study([{"lr": lr} for lr in lrs], {"val/loss": falling, "train/loss": falling})
    for verdict in judge(study, RULES):
        for finding in verdict.findings:
            for text in (str(finding.message), str(finding.action)):
                assert re.match(r"^[A-Z\d\"'“(]", text), text
                assert text.endswith((".", "”.")), text
                assert "nan" not in text.lower().split(), text

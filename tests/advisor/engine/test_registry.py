import pytest
from studies import make_study

import advisor_rules
from advisor.engine.judge import judge
from advisor.engine.registry import load_rules
from advisor.model.errors import AdvisorError
from advisor.model.finding import DataNeed


def test_a_wrong_rule_or_threshold_is_a_clear_error():
    with pytest.raises(AdvisorError, match="'no-such-rule', which does not exist"):
        load_rules(settings={"no-such-rule": {}})


RULE = '''
from collections.abc import Iterator
from typing import ClassVar
from advisor.model.finding import Finding, MissingData
from advisor.engine.rule import Rule, Share

class Mine(Rule):
    """Mine."""
    playbook: ClassVar[str] = "P"
    goal: ClassVar = "steps"
    edge: Share = 0.5
    """How far."""
    def check(self, study):
        {body}
        yield
'''


@pytest.fixture
def own(tmp_path):
    def write(body, name="mine.py"):
        (tmp_path / name).write_text(RULE.replace("{body}", body))
        return tmp_path

    return write


def test_rules_of_ones_own_come_through_the_same_door(own):
    rules = {r.rule_id(): r for r in load_rules(directories=[own("return")], settings={"mine": {"edge": 0.25}})}
    assert rules["mine"].edge == 0.25
    assert rules["mine"].threshold_docstrings() == {"edge": "How far."}
    with pytest.raises(AdvisorError, match="no threshold 'egde'; it has: edge"):
        load_rules(directories=[own("return")], settings={"mine": {"egde": 0.25}})
    with pytest.raises(AdvisorError, match="threshold 'edge'"):
        load_rules(directories=[own("return")], settings={"mine": {"edge": 3}})


RELATED = '''
from typing import ClassVar
from advisor.engine.rule import Expectation, Relation, Rule, QuietVerdict
from advisor.model.finding import Finding

class Culprit(Rule):
    """Mine."""
    playbook: ClassVar[str] = "P"
    goal: ClassVar = "pipeline"
    explains: ClassVar[tuple[Relation, ...]] = (Relation(rules=("seeds",), shares="study", because="It is to blame."),)
    predicts: ClassVar[Expectation] = "no-worse"
    before_exploitation: ClassVar[QuietVerdict | None] = "not-fired"

    def check(self, study):
        yield self.finding("It is.", action="Mend it.", severity="critical", confidence=0.9)
'''


def test_a_rule_of_ones_own_explains_what_built_in_ones_find(tmp_path):
    (tmp_path / "culprit.py").write_text(RELATED)
    study = make_study([{"lr": 10.0**-i, "seed": 7} for i in range(8)], {"val/loss": [[1.0, 0.5]] * 8})
    verdicts = {v.rule: v for v in judge(study, load_rules(directories=[tmp_path]))}
    explanation = verdicts["seeds"].findings[0].explained_by
    assert (explanation.rule, explanation.because) == ("culprit", "It is to blame.")
    assert [change.text for change in verdicts["culprit"].findings[0].changes] == ["Mend it."]
    other = tmp_path / "other"
    other.mkdir()
    (other / "culprit.py").write_text(RELATED.replace('"seeds"', '"sedes"'))
    (tmp_path / "culprit.py").unlink()
    with pytest.raises(AdvisorError, match="'culprit' has a relation to 'sedes', which does not exist"):
        load_rules(directories=[other])


def test_a_rule_in_a_new_chapter_is_found(tmp_path, monkeypatch):
    chapter = tmp_path / "fairness"
    chapter.mkdir()
    (chapter / "__init__.py").write_text("")
    (chapter / "culprit.py").write_text(RELATED)
    monkeypatch.setattr(advisor_rules, "__path__", [*advisor_rules.__path__, str(tmp_path)])
    assert "culprit" in [rule.rule_id() for rule in load_rules()]


def test_a_rule_file_that_cannot_be_loaded(own, tmp_path):
    (tmp_path / "bad.py").write_text("1/0")
    with pytest.raises(AdvisorError, match=r"bad.py' cannot be loaded: ZeroDivisionError"):
        load_rules(directories=[tmp_path])
    with pytest.raises(AdvisorError, match="does not exist"):
        load_rules(directories=[tmp_path / "nothing"])


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        ("raise MissingData('no norm', needs='grad_norm')", "not-assessed", "no norm"),
        ("1 / 0", "broken", "ZeroDivisionError"),
        ("return", "quiet", None),
    ],
)
def test_a_broken_rule_stops_nobody_else(own, body, status, reason):
    study = make_study([{"lr": 1.0}], {"val/loss": [[1.0]]})
    verdicts = {v.rule: v for v in judge(study, load_rules(directories=[own(body)]))}
    assert verdicts["mine"].status == status
    assert reason is None or reason in verdicts["mine"].reason
    assert verdicts["mine"].needs == (DataNeed("grad_norm") if status == "not-assessed" else None)

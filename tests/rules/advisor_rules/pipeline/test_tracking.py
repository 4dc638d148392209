"""tracking: what it takes to find and to repeat a study."""

from dataclasses import replace

import numpy as np
from promise import studies
from studies import make_study, verdict

from advisor.computed.pipeline.reproduction import reproduction_facts

RULE = "tracking"
WHOLE = {
    "schema": "1",
    "command": "python train.py --config small.yaml",
    "config": '["small.yaml"]',
    "git_commit": "0123456789abcdef",
    "git_dirty": "false",
    "study": "digits",
}


def study(*tags, name="digits", goal="", **kwargs):
    params = [{"lr": 0.1 / (i + 1)} for i in range(len(tags))]
    made = make_study(params, {"val/loss": [[1.0, 0.5]] * len(tags)}, tags=tags, **kwargs)
    return replace(made, spec=made.spec.model_copy(update={"study": name, "goal": goal}))


def without(*names):
    return {k: v for k, v in WHOLE.items() if k not in names}


def example():
    return study(*[without("git_commit")] * 3)


def test_all_is_noted():
    assert verdict(RULE, study(*[WHOLE] * 3)).status == "quiet"
    assert verdict(RULE, study(*[{**WHOLE, "git_dirty": "true"}] * 3)).status == "quiet"


def test_code_that_nobody_can_find():
    shown = study(*[without("git_commit")] * 3, goal="Find a learning rate")
    (finding,) = verdict(RULE, shown).findings
    assert finding.severity == "note"
    assert finding.action == "Run trainings from a git repository."
    assert "3 of 3 trials" in finding.message
    assert finding.changes[0].apply(shown.spec).notes == (finding.changes[0].text,)
    assert ("best trial's command", WHOLE["command"]) in finding.evidence[0].rows


def test_all_that_lacks_is_said_in_one_sentence():
    (finding,) = verdict(RULE, study(WHOLE, without("command"), without("git_commit", "study"))).findings
    assert all(what in finding.message for what in ("command of 1 of 3 trials", "commit", "goal"))


def test_a_study_without_a_name():
    assert verdict(RULE, study(*[without("study")] * 2)).status == "quiet"
    (finding,) = verdict(RULE, study(*[without("study")] * 2, name="Default")).findings
    assert "a name of the study" in finding.message


def test_code_that_changed():
    (finding,) = verdict(RULE, study(WHOLE, WHOLE, {**WHOLE, "git_commit": "fedcba"})).findings
    assert finding.trials == ("run2",)


def test_it_cannot_tell_without_the_hook():
    for tags in ({}, {"git_commit": "abc"}):
        said = verdict(RULE, study(tags, tags))
        assert said.status == "not-assessed"
        assert "training hook does" in said.reason
    assert verdict(RULE, study(WHOLE, WHOLE, status=["running", "complete"])).status == "quiet"


def test_what_it_takes_to_run_a_trial_again():
    (trial,) = study({**WHOLE, "git_dirty": "true"}).trials
    assert reproduction_facts(trial) == (
        ("command", WHOLE["command"]),
        ("configuration", "small.yaml"),
        ("code", "commit 0123456789ab, with the changes in reproduce/git.diff"),
    )
    for config in ("{", "3"):
        (trial,) = study({"config": config}).trials
        assert reproduction_facts(trial) == ()


def test_it_keeps_its_promise():
    rng = np.random.default_rng(0)
    for _ in studies(200):
        commit = f"{rng.integers(2**40):x}"
        tags = [{**WHOLE, "git_commit": commit, "git_dirty": str(rng.random() < 0.5).lower()}] * int(rng.integers(1, 20))
        assert verdict(RULE, study(*tags)).status == "quiet"


def test_results_without_hyperparameters_are_critical():
    losses = [[1.0, 0.5 + 0.1 * i] for i in range(6)]
    (finding,) = verdict(RULE, make_study([{}] * 6, {"val/loss": losses})).findings
    assert finding.severity == "critical"
    assert str(finding.message).startswith("None of the 6 trials with a result logged a hyperparameter")
    assert finding.action == "Log the hyperparameters of each run as parameters, in the same run as val/loss."


def test_seeds_commits_or_few_trials_need_no_hyperparameters():
    losses = {"val/loss": [[1.0, 0.5 + 0.1 * i] for i in range(6)]}
    commits = [{"git_commit": f"{i:040}", "command": "python train.py"} for i in range(6)]
    for made in (
        make_study([{}] * 6, losses, seeds=range(6)),
        make_study([{}] * 6, losses, tags=commits),
        make_study([{}] * 2, {"val/loss": losses["val/loss"][:2]}),
    ):
        assert not any(f.severity == "critical" for f in verdict(RULE, made).findings)

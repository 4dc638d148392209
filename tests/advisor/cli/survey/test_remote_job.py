"""Jobs for other machines, and the errors of machines that cannot run them."""

import os
from dataclasses import replace

import pytest

from advisor.cli.survey.remote_job import pack_remote_job
from advisor.model.errors import AdvisorError

RULE = (
    '"""A rule of one\'s own."""\n'
    'from advisor.engine.rule import Rule\n\nclass Mine(Rule):\n    """Mine."""\n    playbook = "none"\n'
    '    goal = "pipeline"\n\n    def check(self, study):\n        return iter(())\n'
)


@pytest.fixture
def project(tmp_path, database, monkeypatch):
    """A folder with a store, settings and rules, as the working directory."""
    (tmp_path / "mine" / "deep").mkdir(parents=True)
    (tmp_path / "mine" / "deep" / "mine.py").write_text(RULE, "utf-8")
    (tmp_path / "advisor.toml").write_text("[rules.space-boundary]\nbest = 7\n", "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "pl4nted")
    monkeypatch.setenv("SOMEBODYS_TOKEN", "pr1vate")
    return tmp_path


def test_options_mean_the_same_on_another_machine(project, monkeypatch):
    job = pack_remote_job({"tracking_uri": "sqlite:///mlflow.db", "rules": ("mine",)}, ["Default"])
    assert "pl4nted" not in repr(job)
    assert "SOMEBODYS_TOKEN" not in job.environment
    monkeypatch.chdir("/")
    monkeypatch.delenv("MLFLOW_TRACKING_PASSWORD")
    with job.unpack() as options:
        assert options["tracking_uri"] == f"sqlite:///{project / 'mlflow.db'}"
        assert options["settings"] == {"space-boundary": {"best": 7}}
        (folder,) = options["rules"]
        assert (folder / "deep" / "mine.py").read_text("utf-8") == RULE
        assert os.environ["MLFLOW_TRACKING_PASSWORD"] == "pl4nted"
    assert not folder.exists()


@pytest.mark.parametrize(
    ("store", "experiments", "message"),
    [
        (
            "sqlite:////nowhere/mlflow.db",
            ["Default"],
            "cannot open the store; pass .* every node can reach.*no MLflow store at /nowhere",
        ),
        ("mlflow.db", ["Default", "a", "b", "c"], "sees a different store, with 1 of the 4 experiments; pass"),
    ],
)
def test_a_missing_or_different_store_is_an_error(project, store, experiments, message):
    job = pack_remote_job({"tracking_uri": store}, experiments)
    with pytest.raises(AdvisorError, match=message), job.unpack():
        pass


def test_another_version_is_an_error(project):
    job = replace(pack_remote_job({"tracking_uri": "mlflow.db"}, ["Default"]), version="9.9")
    with pytest.raises(AdvisorError, match=r"has tuning-advisor .*, this machine 9\.9; install the same"), job.unpack():
        pass


def test_invalid_settings_and_rules_are_errors_before_anything_is_sent(project):
    with pytest.raises(AdvisorError, match="the rules folder 'none' does not exist"):
        pack_remote_job({"rules": ("none",)}, ["Default"])
    (project / "advisor.toml").write_text("[rules.none]\n", "utf-8")
    with pytest.raises(AdvisorError, match="settings name the rule 'none', which does not exist"):
        pack_remote_job({}, ["Default"])


def test_each_machine_has_its_own_files(project, monkeypatch):
    for name in ("PGPASSFILE", "AWS_CA_BUNDLE", "MLFLOW_TRACKING_SERVER_CERT_PATH", "ADVISOR_CACHE"):
        monkeypatch.setenv(name, str(project / "here"))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "pl4nted")
    sent = pack_remote_job({"tracking_uri": "mlflow.db"}, ["Default"]).environment
    assert str(project / "here") not in sent.values()
    assert sent["AWS_SECRET_ACCESS_KEY"] == "pl4nted"


def test_a_rules_folder_that_cannot_be_read_is_an_error(project):
    (project / "mine" / "_gone.py").symlink_to(project / "nowhere")
    with pytest.raises(AdvisorError, match=r"cannot read the rules folder 'mine': No such file.*_gone\.py"):
        pack_remote_job({"tracking_uri": "mlflow.db", "rules": ("mine",)}, ["Default"])

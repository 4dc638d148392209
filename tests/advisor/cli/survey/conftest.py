"""A store of unusual experiments, and the survey of this store on this machine."""

import shutil
import subprocess

import pytest
from commands import ADVISOR
from mlflow.tracking import MlflowClient
from mlflow_studies import log_study

RATES = [10 ** (-4 + 0.5 * i) for i in range(6)]
HOSTILE = "../<script>alert(1)</script>{{ 7*7 }}\u202e"
KILLER = '''
"""A rule that kills its process when it checks one of the studies."""
import os
from advisor.engine.rule import Rule

class Killer(Rule):
    """Kills.

    ## What it looks at
    Names.
    """
    playbook = "none"
    goal = "pipeline"

    def check(self, study):
        if study.name == "fatal":
            os.kill(os.getpid(), 9)
        return iter(())
'''


@pytest.fixture(scope="session")
def uri(tmp_path_factory, empty_store):
    """A store of odd experiments beside a plain one."""
    folder = tmp_path_factory.mktemp("workspace")
    uri = f"sqlite:///{shutil.copy(empty_store, folder / 'mlflow.db')}"
    client = MlflowClient(uri)
    for name in ("plain", HOSTILE, "A/b", "a b", "fatal"):
        log_study(client, name, RATES if name == "plain" else RATES[:3])
    client.create_experiment("empty")
    run = client.create_run(client.create_experiment("riddle"))
    client.log_metric(run.info.run_id, "zorp", 1.0)
    client.set_terminated(run.info.run_id)
    return uri


@pytest.fixture(scope="session")
def survey(uri, tmp_path_factory):
    """Survey with a rule that kills its process: (folder of the reports, folder of rules, completed command)."""
    folder = tmp_path_factory.mktemp("all")
    (folder / "rules").mkdir()
    (folder / "rules" / "killer.py").write_text(KILLER, "utf-8")
    options = ["--tracking-uri", uri, "--out", str(folder / "out"), "--jobs", "2", "--rules", str(folder / "rules")]
    command = [*ADVISOR, "survey", *options]
    return folder / "out", folder / "rules", subprocess.run(command, capture_output=True, text=True, check=False)

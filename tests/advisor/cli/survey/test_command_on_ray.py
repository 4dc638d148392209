"""`advisor survey --on ray`: the same files as on this machine, from nodes that need not share its disk."""

import os
import re
import shutil
import signal
import subprocess
import sys

import psutil
import pytest
from clusters import ray_cluster
from commands import ADVISOR, contents
from launches import wait_until

pytestmark = pytest.mark.slow

SLEEPER = """
import os, time
from pathlib import Path
from advisor.engine.rule import Rule

class Sleeper(Rule):
    '''Sleeps.

    ## What it looks at
    Nothing.
    '''
    playbook = "none"
    goal = "pipeline"

    def check(self, study):
        (Path(os.environ["ADVISOR_BEGUN_IN"]) / str(os.getpid())).touch()
        time.sleep(600)
        return iter(())
"""


@pytest.fixture(scope="module")
def cluster():
    with ray_cluster({"num_cpus": 1}, {"num_cpus": 1}) as cluster:
        yield cluster


def _command(cluster, uri, out, *more):
    where = ["--on", "ray", "--ray-address", cluster.address, "--tracking-uri", uri, "--out", str(out)]
    return [*ADVISOR, "survey", *where, *more]


def _run(*arguments, **more):
    return subprocess.run(_command(*arguments), capture_output=True, text=True, check=False, timeout=300, **more)


def _without_place(text):
    """Return the text without the words that name the place of a process."""
    return text.replace("its process on the Ray cluster was killed", "the process was killed")


def test_files_are_those_of_this_machine_byte_by_byte(cluster, uri, survey, tmp_path):
    out, rules, here = survey
    folder = uri.removeprefix("sqlite:///").removesuffix("/mlflow.db")
    done = _run(cluster, "sqlite:///mlflow.db", tmp_path, "--jobs", "2", "--rules", str(rules), cwd=folder)
    assert _without_place(done.stdout.replace(str(tmp_path), str(out))) == _without_place(here.stdout)
    assert " ".join(done.stdout.split()).lower().count("its process on the ray cluster was killed") == 1
    assert (done.returncode, _without_place(done.stderr)) == (2, _without_place(here.stderr))
    mine, theirs = contents(tmp_path), contents(out)
    assert _without_place(mine.pop("index.html").decode()) == _without_place(theirs.pop("index.html").decode())
    assert {name: page.replace(bytes(tmp_path), bytes(out)) for name, page in mine.items()} == theirs
    quiet = _run(cluster, uri, tmp_path / "quiet", "plain", "--fail-on", "note", "-q")
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (1, "", "")


def test_ctrl_c_cancels_the_tasks_on_the_cluster_and_leaves_no_partial_files(cluster, uri, tmp_path):
    began, rules = tmp_path / "began", tmp_path / "rules"
    began.mkdir()
    rules.mkdir()
    (rules / "sleeper.py").write_text(SLEEPER, "utf-8")
    environment = {**os.environ, "ADVISOR_BEGUN_IN": str(began)}
    words = _command(cluster, uri, tmp_path / "out", "--rules", str(rules))
    running = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True)
    wait_until(lambda: len(os.listdir(began)) == 2)
    os.killpg(running.pid, signal.SIGINT)
    _, error = running.communicate(timeout=60)
    assert (running.returncode, error.strip()) == (130, "advisor: interrupted")
    wait_until(lambda: not any(psutil.pid_exists(int(pid)) for pid in os.listdir(began)))
    assert contents(tmp_path / "out") == {}


def _can_hide_folders():
    words = ["unshare", "--mount", "--map-root-user", "mount", "-t", "tmpfs", "none", "/mnt"]
    return shutil.which("unshare") is not None and subprocess.run(words, capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not _can_hide_folders(), reason="no name spaces for mounts here")
def test_a_node_that_does_not_see_the_store_is_reported_in_one_line(uri, tmp_path):
    store = uri.removeprefix("sqlite:///").removesuffix("/mlflow.db")
    with ray_cluster({"num_cpus": 0}) as cluster:
        ray = f"{sys.executable} -m ray.scripts.scripts start --address {cluster.address} --num-cpus 1 --block"
        words = ["unshare", "--mount", "--map-root-user", "sh", "-c", f"mount -t tmpfs none '{store}' && exec {ray}"]
        node = subprocess.Popen(words, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            done = _run(cluster, uri, tmp_path / "out")
        finally:
            os.killpg(node.pid, signal.SIGTERM)
            node.wait(60)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(
        r"advisor: node \S+ cannot open the store; pass a --tracking-uri that every node can reach: .*\n", done.stderr
    )

"""`advisor analyze --all --on ray`: the same files as on this machine, from nodes that need not share its disk."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time

import psutil
import pytest
from clusters import ray_cluster
from commands import contents

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
        (Path(os.environ["ADVISOR_SAYS_SO_IN"]) / str(os.getpid())).touch()
        time.sleep(600)
        return iter(())
"""


@pytest.fixture(scope="module")
def cluster():
    with ray_cluster({"num_cpus": 1}, {"num_cpus": 1}) as cluster:
        yield cluster


def _command(cluster, uri, out, *more):
    where = ["--on", "ray", "--ray-address", cluster.address, "--tracking-uri", uri, "--out", str(out)]
    return [sys.executable, "-m", "advisor", "analyze", "--all", *where, *more]


def _run(*arguments, **more):
    return subprocess.run(_command(*arguments), capture_output=True, text=True, check=False, timeout=300, **more)


def _death(text):
    """Without why an experiment's process died, which nodes do not tell."""
    return re.sub(r"(its process died: )?it was killed[^.<]*", "KILLED", text, flags=re.I)


def test_files_are_those_of_this_machine_byte_by_byte(cluster, uri, analysed, tmp_path):
    out, rules, here = analysed
    folder = uri.removeprefix("sqlite:///").removesuffix("/mlflow.db")
    done = _run(cluster, "sqlite:///mlflow.db", tmp_path, "--jobs", "2", "--rules", str(rules), cwd=folder)
    assert _death(done.stdout.replace(str(tmp_path), str(out))) == _death(here.stdout)
    assert done.stdout.lower().count("it was killed on its node") == 1
    assert (done.returncode, _death(done.stderr)) == (2, _death(here.stderr))
    mine, theirs = contents(tmp_path), contents(out)
    assert _death(mine.pop("index.html").decode()) == _death(theirs.pop("index.html").decode())
    assert mine == theirs
    found = _run(cluster, uri, tmp_path / "found", "plain", "--fail-on", "note", "-q")
    assert (found.returncode, found.stdout, found.stderr) == (1, "", "")


def test_ctrl_c_ends_what_runs_on_the_cluster_and_leaves_no_half_files(cluster, uri, tmp_path):
    began, rules = tmp_path / "began", tmp_path / "rules"
    began.mkdir()
    rules.mkdir()
    (rules / "sleeper.py").write_text(SLEEPER, "utf-8")
    environment = {**os.environ, "ADVISOR_SAYS_SO_IN": str(began)}
    words = _command(cluster, uri, tmp_path / "out", "--rules", str(rules))
    running = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True)
    _until(lambda: len(os.listdir(began)) == 2)
    os.killpg(running.pid, signal.SIGINT)
    _, said = running.communicate(timeout=60)
    assert (running.returncode, said.strip()) == (130, "advisor: interrupted")
    _until(lambda: not any(psutil.pid_exists(int(pid)) for pid in os.listdir(began)))
    assert contents(tmp_path / "out") == {}


def _can_hide_folders():
    words = ["unshare", "--mount", "--map-root-user", "mount", "-t", "tmpfs", "none", "/mnt"]
    return (
        shutil.which("unshare") is not None and subprocess.run(words, capture_output=True, check=False).returncode == 0
    )


@pytest.mark.skipif(not _can_hide_folders(), reason="no name spaces for mounts here")
def test_a_node_that_does_not_see_the_store_is_told_of_in_one_line(uri, tmp_path):
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
        r"advisor: the node \S+ cannot open the store; pass a --tracking-uri that every node reaches: .*\n", done.stderr
    )


def _until(condition, seconds=120.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.1)

"""The command `advisor run`, for `kills.py` to kill: it launches real but short trainings."""

from __future__ import annotations

import json
import socketserver
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil
from kill_base import KilledCommand, Words, files_below
from kills import Victim

STUDY = """
study: killed
goal: Train every trial to its end.
objective: {metric: loss, direction: minimize}
parameters:
  lr: {low: 0.001, high: 1.0, scale: log}
trials: 4
max_train_steps: 2
"""
TRAINING = """
import json, os, socket, sys, time
from pathlib import Path

def log(*values):
    with socket.create_connection(("127.0.0.1", int(os.environ["LOGS_FOR_ME"]))) as line, line.makefile("rw") as file:
        file.write(json.dumps([os.environ["MLFLOW_TRACKING_URI"], os.environ["MLFLOW_RUN_ID"], *values]) + "\\n")
        file.flush()
        assert file.readline()

trial = os.environ["ADVISOR_TRIAL"]
log("loss", 2.0, 1)
time.sleep(0.2)
log("loss", float(sys.argv[1]), 2)
log("FINISHED")
with Path("ended").open("a") as file:
    file.write(trial + "\\n")
"""


class Run(KilledCommand):
    """The command `advisor run` with four trials, two at a time."""

    def __init__(self, folder: Path, port: int) -> None:
        super().__init__(folder)
        self._port = port
        (folder / "study.yaml").write_text(STUDY)

    def renew(self) -> None:
        psutil.wait_procs(self.at_work(), timeout=60)
        super().renew()
        (self.store.parent / "train.py").write_text(TRAINING)

    def command(self) -> Words:
        here = self.store.parent
        train = f"import os; os.chdir({str(here)!r}); exec(open('train.py').read())"
        words = ["run", str(self.folder / "study.yaml"), "--experiment", "e", "--out", str(here / "out"), "-j", "2"]
        return [*words, "--quiet", "--", sys.executable, "-S", "-c", train, "{lr}"], self.environment(
            LOGS_FOR_ME=str(self._port)
        )

    def at_work(self) -> list[psutil.Process]:
        mark = f"chdir({str(self.store.parent)!r})"
        return [p for p in psutil.process_iter(["cmdline"]) if any(mark in word for word in p.info["cmdline"] or ())]

    def result(self) -> Mapping[str, object]:
        """Return the finished trials with parameters, values and status, and also the trials that were trained to the end twice."""
        finished = trials(self.store)
        ended = Counter((self.store.parent / "ended").read_text().split()) if finished else Counter()
        return {**finished, **{f"trial-{trial} again": n for trial, n in ended.items() if n > 1}}

    def torn(self) -> int:
        return 0

    def files(self) -> set[str]:
        return super().files() | files_below(self.store.parent / "out")


def trials(store: Path) -> dict[str, object]:
    """Return the recorded data of the finished trials in the store."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{store}")
    experiment = client.get_experiment_by_name("e")
    finished: dict[str, object] = {}
    for run in client.search_runs([experiment.experiment_id]) if experiment is not None else ():
        tags, name = run.data.tags, str(run.info.run_name)
        done = json.loads(tags["advisor.launch"]).get("state") == "done" or run.info.status == "FINISHED"
        if done:
            while name in finished:
                name += "#"
            facts = (tags.get("advisor.status"), tags["advisor.seed"], run.info.status, run.data.params, run.data.metrics)
            finished[name] = json.dumps(facts)
    return finished


class _Logs(socketserver.StreamRequestHandler):
    """Logs for the trainings, because importing MLflow in each of them would take seconds."""

    def handle(self) -> None:
        from mlflow.tracking import MlflowClient

        uri, run_id, what, *more = json.loads(self.rfile.readline())
        client = MlflowClient(uri)
        client.log_metric(run_id, what, more[0], step=more[1]) if more else client.set_terminated(run_id, what)
        self.wfile.write(b"done\n")


@contextmanager
def serve_logging(folder: Path) -> Iterator[Victim]:
    """Yield the command `Run`, while the logging server of its trainings runs."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Logs) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        yield Run(folder, server.server_address[1])
        server.shutdown()

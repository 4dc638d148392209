from __future__ import annotations

import json
import math
import os
import random
import resource
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from mlflow.entities import Run
from mlflow.tracking import MlflowClient
from torch import nn

from advisor import analyze, contract
from advisor_logging import manifest
from advisor_logging.checkpoints import Checkpoints
from advisor_logging.manifest import RunInfo
from advisor_pytorch import TuningLogger

OnlyRun = Callable[[], Run]
Start = Callable[..., TuningLogger]
Train = Callable[..., None]

ABOUT = RunInfo("val/loss", "minimize")


def write(text: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(text)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@contextmanager
def full_disk(bytes_left: int) -> Iterator[None]:
    """No file of this process grows beyond so many bytes, as on a disk with no more room."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_left, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_the_best_and_the_last_are_kept(tmp_path: Path) -> None:
    kept = Checkpoints(tmp_path / "run", 2, ABOUT)
    values = [3.0, 1.0, math.nan, 2.0, 2.0, 5.0]
    offered = [kept.offer(step, step + 1, value, write(f"{step}")) for step, value in enumerate(values)]
    assert offered == [True, True, False, True, True, True]
    assert [(c.step, c.value) for c in kept.current.best] == [(1, 1.0), (3, 2.0)]  # of equals the earlier
    assert kept.current.last is not None
    assert kept.current.last.step == 5
    assert names(tmp_path / "run") == {
        "step-000000001.pt",
        "step-000000003.pt",
        "step-000000005.pt",
        "checkpoints.json",
    }
    assert (tmp_path / "run" / "step-000000003.pt").read_text() == "3"
    told = json.loads(kept.describe())
    assert (told["policy"], told["chosen"], [c["step"] for c in told["kept"]]) == ("best-2+last", 1, [1, 3, 5])
    assert not Checkpoints(tmp_path / "none", 0, ABOUT).offer(1, 2, 0.0, write(""))
    assert not (tmp_path / "none").exists()


def test_higher_is_better_where_the_objective_is_maximized(tmp_path: Path) -> None:
    kept = Checkpoints(tmp_path / "run", 1, replace(ABOUT, direction="maximize"))
    for step, value in enumerate([0.1, 0.9, 0.5]):
        kept.offer(step, step + 1, value, write(""))
    assert [c.step for c in kept.current.all] == [1, 2]


def test_what_was_kept_before_is_ranked_along(tmp_path: Path) -> None:
    first = Checkpoints(tmp_path / "run", 2, ABOUT)
    for step, value in ((9, 0.5), (19, 0.1), (29, 0.3)):
        first.offer(step, step + 1, value, write(f"first {step}"))
    (tmp_path / "run" / ".partial").mkdir()
    (tmp_path / "run" / ".partial" / "step-000000039.pt").write_text("torn off")
    again = Checkpoints(tmp_path / "run", 2, ABOUT)
    assert again.current == first.current
    assert not (tmp_path / "run" / ".partial").exists()
    again.offer(29, 30, 0.2, write("again 29"))  # made again, and better this time
    again.offer(39, 40, 0.4, write("again 39"))
    assert [(c.step, c.path.read_text()) for c in again.current.all] == [
        (19, "first 19"),
        (29, "again 29"),
        (39, "again 39"),
    ]
    other = Checkpoints(tmp_path / "run", 2, replace(ABOUT, objective="val/error"))
    assert other.current.all == ()  # values of another objective do not compare


@pytest.mark.parametrize(
    "lie",
    [
        "",
        "[]",
        "{",
        '{"run": 3, "checkpoints": [1]}',
        '{"checkpoints": {"a": 1}, "last": {}}',
        "[" * 100_000,
        '{"run": {"objective": "val/loss", "direction": "minimize"}, "last": "../mine", "checkpoints": [3, {"file": "../mine", '
        '"step": 1, "steps_made": 2, "value": 9.0}, {"file": "mine", "step": 1, "steps_made": 2, "value": 9.0}, '
        '{"file": "step-000000001.pt", "step": "1", "steps_made": 2, "value": 9.0}, '
        '{"file": "step-000000001.pt", "step": 1, "steps_made": 2, "value": Infinity}, '
        '{"file": "step-000000002.pt", "step": 1, "steps_made": 2, "value": 9.0}]}',
    ],
)
def test_a_list_that_lies_is_not_believed(tmp_path: Path, lie: str) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "checkpoints.json").write_text(lie)
    mine = [tmp_path / "mine", folder / "mine", folder / "step-000000001.pt"]
    for path in mine:
        path.write_text("mine")
    kept = Checkpoints(folder, 1, ABOUT)
    assert kept.current.all == ()
    for step, value in ((1, 0.5), (2, 0.4), (3, 0.6)):
        assert kept.offer(step, step + 1, value, write("new"))
    assert [c.step for c in kept.current.all] == [2, 3]
    assert [path.read_text() for path in mine] == ["mine"] * 3


def test_deleted_files_are_forgotten(tmp_path: Path) -> None:
    kept = Checkpoints(tmp_path / "run", 2, ABOUT)
    for step, value in ((1, 0.1), (2, 0.2), (3, 0.3)):
        kept.offer(step, step + 1, value, write(""))
    kept.current.best[0].path.unlink()
    assert kept.find(1) is None
    assert json.loads(kept.describe())["chosen"] == 2
    kept.offer(4, 5, 0.4, write(""))
    assert [c.step for c in kept.current.all] == [2, 3, 4]
    manifest_of = tmp_path / "run"
    for path in manifest_of.iterdir():
        path.unlink()
    manifest_of.rmdir()
    assert kept.current.all == ()
    kept.offer(5, 6, 0.5, write(""))
    assert names(manifest_of) == {"step-000000005.pt", "checkpoints.json"}


def test_a_folder_is_kept_as_one(tmp_path: Path) -> None:
    def save(path: Path) -> None:
        (path / "shards").mkdir(parents=True)
        (path / "shards" / "0").write_text(str(path.name))
        (path / "link").symlink_to("nowhere")

    kept = Checkpoints(tmp_path / "run", 1, ABOUT, suffix="")
    for step, value in ((1, 0.3), (2, 0.1), (3, 0.2), (4, 0.1)):
        kept.offer(step, step + 1, value, save)
    assert names(tmp_path / "run") == {"step-000000002", "step-000000004", "checkpoints.json"}
    assert (tmp_path / "run" / "step-000000002" / "shards" / "0").read_text() == "step-000000002"


def test_a_save_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    def half(path: Path) -> None:
        path.mkdir()
        (path / "a").write_text("a")
        raise RuntimeError("torn")

    kept = Checkpoints(tmp_path / "run", 1, ABOUT)
    kept.offer(1, 2, 0.5, write("good"))
    before = names(tmp_path / "run")
    for save, message in ((half, "torn"), (lambda path: None, "wrote nothing")):
        with pytest.raises((RuntimeError, OSError), match=message):
            kept.offer(2, 3, 0.1, save)
        assert names(tmp_path / "run") == before
    (tmp_path / "run" / "checkpoints.json").unlink()
    (tmp_path / "run" / "checkpoints.json").mkdir()  # a list that cannot be replaced
    with pytest.raises(OSError):
        kept.offer(3, 4, 0.1, write("unlisted"))
    assert names(tmp_path / "run") == before
    assert [c.step for c in kept.current.all] == [1]


def test_killed_at_any_moment_what_is_listed_is_whole(tmp_path: Path) -> None:
    code = """
    import sys, time
    from pathlib import Path
    from advisor_logging.checkpoints import Checkpoints
    from advisor_logging.manifest import RunInfo
    def save(path):
        path.mkdir()
        for i in range(20):
            (path / str(i)).write_text("x" * 10_000)
    kept = Checkpoints(Path(sys.argv[1]), 3, RunInfo("val/loss", "minimize"), "")
    first = max((c.step for c in kept.current.all), default=0) + 1
    print(first, flush=True)
    for step in range(first, 10**6):
        kept.offer(step, step + 1, (step * 7919) % 101 / 101, save)
    """
    folder = tmp_path / "run"
    delays = random.Random(0)
    reached, last = 0, None
    for _ in range(6):
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code), str(folder)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        started = int(process.stdout.readline())
        assert started > reached or last is None
        while manifest.read_checkpoints(folder, "val/loss")[1] in (None, last):  # a busy machine takes its time
            assert process.poll() is None
            time.sleep(0.005)
        time.sleep(delays.uniform(0.0, 0.15))
        process.kill()
        process.wait()
        process.stdout.close()
        kept, last = manifest.read_checkpoints(folder, "val/loss")
        assert last is not None
        reached = last.step
        for checkpoint in kept:
            assert {p.name: p.stat().st_size for p in checkpoint.path.iterdir()} == {str(i): 10_000 for i in range(20)}


# --- in a training --------------------------------------------------------------------------------------------------------------


class Work:
    """A training that draws from three generators and has all the state there is."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        random.seed(2)
        np.random.seed(3)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, 0.1, total_steps=100)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=3)

    def log(self, uri: str, **given: object) -> TuningLogger:
        known = {"params": {"learning_rate": 0.01}, "objective": "val/error", "experiment": "test", "tracking_uri": uri}
        state = {"scaler": self.scaler, "scheduler": self.scheduler, "checkpoints": 2}
        return TuningLogger(self.model, self.optimizer, **{**known, **state, **given})  # type: ignore[arg-type]

    def train(self, log: TuningLogger, until: int) -> None:
        while log.steps < until:
            x = torch.randn(8, 4) * random.random() + np.random.rand()
            loss = nn.functional.mse_loss(self.model(x), x[:, :1])
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad()
            self.scheduler.step()
            log.step(loss)

    def weights(self) -> list[torch.Tensor]:
        return [t.clone() for t in self.model.state_dict().values()]


def killed(uri: str, tmp_path: Path, only_run: OnlyRun, *, knows_its_run: bool) -> Run:
    """A run of `Work` in a process that is killed at step 30, after evaluations at 10, 20 and 30, once all of it is delivered."""
    code = f"""
    import os, signal, sys, time
    import torch
    torch.set_num_threads(1)
    sys.path.insert(0, {str(Path(__file__).parent)!r})
    from test_checkpoints import Work
    work = Work()
    log = work.log({uri!r})
    for step, error in ((10, 0.3), (20, 0.1), (30, 0.2)):
        work.train(log, step)
        while {knows_its_run} and log.run_id is None:
            time.sleep(0.02)
        log.evaluate({{"val/error": error}})
    work.train(log, 35)
    time.sleep(1.0)  # what is younger may be lost
    os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    client, deadline = MlflowClient(uri), time.monotonic() + 60
    while time.monotonic() < deadline:
        found = client.get_experiment_by_name("test")
        runs = [] if found is None else client.search_runs([found.experiment_id])
        if runs and runs[0].info.status == "KILLED":
            break
        time.sleep(0.1)
    return only_run()


def test_an_interrupted_run_goes_on_as_if_it_had_not_been(uri: str, tmp_path: Path, only_run: OnlyRun) -> None:
    run = killed(uri, tmp_path, only_run, knows_its_run=True)
    run_id = run.info.run_id
    told = json.loads(run.data.tags[contract.TAG_CHECKPOINTS])  # told on the way, since nobody closed it
    assert (told["chosen"], [c["step"] for c in told["kept"]]) == (19, [19, 29])

    whole = Work()
    with whole.log(uri, experiment="whole") as log:
        whole.train(log, 50)
    work = Work()
    work.train(log := work.log(uri, experiment="noise", checkpoints=0), 3)  # whatever came before is forgotten
    log.close()
    with work.log(uri, resume=True) as log:
        assert log.steps == 30
        assert log.best is not None
        assert log.best[:2] == (19, 0.1)
        work.train(log, 40)
        log.evaluate({"val/error": 0.15})
        work.train(log, 50)
    assert all(torch.equal(a, b) for a, b in zip(work.weights(), whole.weights(), strict=True))
    assert work.scheduler.state_dict()["_last_lr"] == whole.scheduler.state_dict()["_last_lr"]
    assert work.scaler.state_dict() == whole.scaler.state_dict()
    assert log.run_id == run_id
    run = only_run()
    told = json.loads(run.data.tags[contract.TAG_CHECKPOINTS])
    assert [(c["step"], c["value"]) for c in told["kept"]] == [(19, 0.1), (39, pytest.approx(0.15)), (49, None)]
    assert log.latest == Path(told["kept"][2]["path"])
    assert log.best is not None
    assert log.best.path == Path(told["kept"][0]["path"])
    assert torch.load(log.latest, weights_only=True)["steps_made"] == 50

    fresh = Work()
    with fresh.log(uri, experiment="again", resume=True) as log:  # that run is over: this is another one
        assert log.steps == 0
    with fresh.log(uri, experiment="again", resume=told["kept"][0]["path"]) as log:
        assert log.steps == 20
    with pytest.raises(ValueError, match="does not fit this training") as caught:
        Work.log(_another_model(), uri, resume=told["kept"][0]["path"])
    assert "\n" not in str(caught.value)
    with pytest.raises(FileNotFoundError, match="nor one of them"):
        Work().log(uri, resume=tmp_path / "nothing")


def _another_model() -> Work:
    work = Work()
    work.model = nn.Sequential(nn.Linear(5, 1))
    return work


def test_killed_before_it_knew_its_run_it_goes_on_in_it(uri: str, tmp_path: Path, only_run: OnlyRun) -> None:
    run = killed(uri, tmp_path, only_run, knows_its_run=False)
    (folder,) = (tmp_path / "checkpoints").iterdir()
    about = manifest.read_run_info(folder)
    assert about is not None
    manifest.write(
        folder, replace(about, run_id=None), *manifest.read_checkpoints(folder, "val/error")
    )  # however fast this machine is
    work = Work()
    with work.log(uri, resume=True) as log:
        work.train(log, 40)
    assert only_run().info.run_id == run.info.run_id == log.run_id
    assert only_run().info.status == "FINISHED"


def test_continued_by_hand_it_ranks_against_what_was_kept(uri: str, start: Start, train: Train, tmp_path: Path) -> None:
    with start(uri, checkpoints=1) as log:
        train(log, 5)
        log.evaluate({"val/error": 0.1})
    with start(uri, checkpoints=1, run_id=log.run_id, start_step=5) as again:
        train(again, 5)
        again.evaluate({"val/error": 0.2})
    assert again.best == log.best
    assert len(names(tmp_path / "checkpoints")) == 1


def test_the_users_own_save_and_load(uri: str, start: Start, train: Train) -> None:
    loaded: list[Path] = []

    def save(path: Path) -> None:
        path.mkdir()
        torch.save(log._model.state_dict(), path / "model.pt")

    given = {"checkpoints": 1, "save": save, "load": loaded.append, "resume": True}
    log = start(uri, **given)
    train(log, 5)
    log.evaluate({"val/error": 0.5})
    log.close("stopped")
    assert log.latest is not None
    assert names(log.latest) == {"model.pt"}
    with start(uri, **given) as again:
        assert again.steps == 5
    assert loaded == [log.latest]
    with pytest.raises(ValueError, match="give `load`"):
        start(uri, checkpoints=1, save=save, resume=True)


def test_a_full_disk_stops_no_training(
    uri: str, start: Start, train: Train, only_run: OnlyRun, caplog: pytest.LogCaptureFixture
) -> None:
    with start(uri, checkpoints=2) as log:
        log._model.register_buffer("ballast", torch.zeros(1_000_000))
        train(log, 5)
        log.evaluate({"val/error": 0.5})
        with full_disk(1_000_000):
            for _ in range(3):
                train(log, 5)
                log.evaluate({"val/error": 0.1})
        assert log.latest is not None
        assert names(log.latest.parent) == {"step-000000004.pt", "checkpoints.json"}
        assert torch.load(log.latest, weights_only=True)["value"] == 0.5
        train(log, 5)
        log.evaluate({"val/error": 0.3})
    assert [m for m in caplog.messages if "checkpoint" in m] == caplog.messages
    assert len(caplog.messages) == 1
    told = json.loads(only_run().data.tags[contract.TAG_CHECKPOINTS])
    assert [c["step"] for c in told["kept"]] == [24, 4]
    assert log.best is not None
    assert log.best[1:] == (pytest.approx(0.1), None)  # the best was seen, and could not be kept


def test_no_checkpoint_of_a_training_that_is_gone(
    uri: str, start: Start, train: Train, caplog: pytest.LogCaptureFixture
) -> None:
    log = start(uri, checkpoints=1)
    train(log, 5)
    log.evaluate({"val/error": 0.5})
    log.evaluate({"val/error": 0.1}, step=2)  # of weights that are no more
    train(log, 5)
    log.close(error=KeyboardInterrupt())  # perhaps in the middle of a step
    assert log.latest is not None
    assert log.latest.name == "step-000000004.pt"
    log = start(uri, checkpoints=1)
    train(log, 5)
    log.evaluate({"val/error": 0.5})
    train(log, 5, loss=math.nan)
    log.close()
    assert log.latest is not None
    assert log.latest.name == "step-000000004.pt"
    assert len([m for m in caplog.messages if "not the last one made" in m]) == 1


def test_the_rule_sees_what_was_kept(uri: str, start: Start, train: Train) -> None:
    def run(**given: object) -> str:
        experiment = str(given)
        with start(uri, experiment=experiment, **given) as log:
            for i in range(20):
                train(log, 5)
                x = i / 20
                log.evaluate({"val/error": 1 + 3 * max(0.4 - x, 0) ** 2 + 0.5 * max(x - 0.4, 0) + 1e-3 * (i % 3)})
        report = analyze(experiment, tracking_uri=uri)
        (said,) = [v for v in report.verdicts if v.rule == "ckpt-best-lost"]
        return said.status

    assert run(checkpoints=0) == "fired"
    assert run(checkpoints=2) == "quiet"


def test_misuse_is_said_at_once(uri: str, start: Start, tmp_path: Path) -> None:
    wrong: list[tuple[type[Exception], str, dict[str, object]]] = [
        (TypeError, "save must be a function", {"checkpoints": 1, "save": "here"}),
        (ValueError, "checkpoints=3", {"resume": True}),
        (ValueError, "omit start_step", {"checkpoints": 1, "resume": True, "start_step": 3}),
        (ValueError, "of your own", {"checkpoints": 1, "save_on_all_ranks": True}),
    ]
    for kind, message, given in wrong:
        with pytest.raises(kind, match=message) as caught:
            start(uri, **given)
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "spool").exists()


def test_all_ranks_save_a_sharded_model_together(uri: str, tmp_path: Path) -> None:
    code = f"""
    import torch, torch.distributed as dist
    from pathlib import Path
    from torch import nn
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from advisor_pytorch import TuningLogger
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    def save(path):
        weights, moments = get_state_dict(model, optimizer)
        checkpoint.save({{"model": weights, "optimizer": moments}}, checkpoint_id=path)
        if path.name == "step-000000007" and rank == 1:
            raise RuntimeError("one rank fails")

    def load(path):
        weights, moments = get_state_dict(model, optimizer)
        checkpoint.load({{"model": weights, "optimizer": moments}}, checkpoint_id=path)
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)

    def train(log, steps):
        for _ in range(steps):
            loss = model(torch.ones(8, 4)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            log.step(loss)

    def whole():
        return [p.detach().full_tensor().clone() for p in model.parameters()]

    given = dict(params={{}}, objective="val/error", experiment="test", tracking_uri={uri!r}, checkpoints=1)
    try:
        TuningLogger(model, optimizer, **given)
    except ValueError as error:
        assert "save_on_all_ranks" in str(error), error
    given |= dict(save=save, load=load, save_on_all_ranks=True, resume=True)
    log = TuningLogger(model, optimizer, **given)
    for made, error in ((4, 0.5), (4, 0.1), (2, 0.3)):  # the ranks do not agree on the value, and the second one fails
        train(log, made)
        log.evaluate({{"val/error": error + 10 * rank}})
    saved = whole()
    log.close("stopped")
    dist.barrier()
    train(log, 5)
    again = TuningLogger(model, optimizer, **given)
    assert again.steps == 10, again.steps
    assert all(torch.equal(a, b) for a, b in zip(saved, whole(), strict=True))
    again.close("stopped")
    dist.destroy_process_group()
    """
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(code))
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    done = subprocess.run(
        run,
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stderr.count("a checkpoint could not be kept (RuntimeError: rank 1: RuntimeError: one rank fails)") == 1
    (experiment,) = [e for e in MlflowClient(uri).search_experiments() if e.name == "test"]
    tags = [r.data.tags for r in MlflowClient(uri).search_runs([experiment.experiment_id])]
    kept = [json.loads(t[contract.TAG_CHECKPOINTS])["kept"] for t in tags if contract.TAG_CHECKPOINTS in t]
    assert [c["step"] for c in kept[0]] == [9] or [c["step"] for c in kept[0]] == [9, 3]

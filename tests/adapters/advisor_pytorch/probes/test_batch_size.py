from __future__ import annotations

import json
import math
import os
import runpy
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from mlflow.tracking import MlflowClient
from probing import Training, analyzed, runs_of

from advisor import contract
from advisor_pytorch.probes import BatchSizeSweep, batch_size_sweep
from advisor_pytorch.probes.batch_size import UNTIMED_WARMUP_STEPS, Stopwatch, Throughput, median_confidence_interval

EXPERIMENT = "batch-size probe"


def make_step(training: Training) -> Callable[[int], Callable[[], torch.Tensor]]:
    return lambda size: lambda: training.step(size)


def test_a_sweep_is_a_study_and_leaves_no_trace(uri: str) -> None:
    undisturbed = Training()
    undisturbed.goes_on(3)
    expected = undisturbed.goes_on()
    training = Training()
    training.goes_on(3)
    group = training.optimizer.param_groups[0]
    weight = training.model[0].weight
    sweep = batch_size_sweep(
        make_step(training),
        training.model,
        training.optimizer,
        start=4,
        maximum=20,
        seconds_per_size=0.3,
        params={"width": 32},
        also=[training.scheduler],
        tracking_uri=uri,
    )
    assert training.goes_on() == expected
    assert training.optimizer.param_groups[0] is group
    assert training.model[0].weight is weight
    assert [s.batch_size for s in sweep.sizes] == [4, 8, 16]
    runs = runs_of(uri, EXPERIMENT)
    assert [r.data.params for r in runs] == [{"batch_size": str(n), "width": "32"} for n in (4, 8, 16)]
    for run, size in zip(runs, sweep.sizes, strict=True):
        assert run.data.tags[contract.TAG_PROBE] == "batch-size"
        assert run.data.tags[contract.TAG_STATUS] == "complete"
        assert run.data.tags[contract.TAG_BATCH_SIZE] == str(size.batch_size)
        points = MlflowClient(uri).get_metric_history(run.info.run_id, contract.EXAMPLES_PER_SECOND)
        assert len(points) == size.blocks >= 3
        middle = sorted(p.value for p in points)[len(points) // 2]
        assert middle == pytest.approx(size.examples_per_s, rel=0.5)
        steps = MlflowClient(uri).get_metric_history(run.info.run_id, contract.GRAD_NORM)
        assert max(p.step for p in steps) + 1 == size.steps + UNTIMED_WARMUP_STEPS
        assert size.quartiles[0] <= size.examples_per_s <= size.quartiles[1]
        assert size.step_time_s == pytest.approx(size.batch_size / size.examples_per_s)
    report = analyzed(uri, EXPERIMENT)
    assert report.spec.objective.metric == contract.EXAMPLES_PER_SECOND
    assert report.counts.total == 3
    judges = {"batch-throughput", "input-bound", "host-sync", "gpu-underused"}
    others = [v for v in report.verdicts if v.rule not in judges]
    assert all("a batch-size probe, which cannot show this problem" in (v.reason or "") for v in others)
    assert report.next == ()


def test_memory_that_is_really_out_ends_the_sweep(uri: str, tmp_path: Path) -> None:
    code = f"""
    import gc, json, resource
    import torch
    from torch import nn
    from advisor_pytorch.probes import batch_size_sweep
    torch.set_num_threads(1)
    model = nn.Linear(100, 100)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    def make_step(size):
        x = torch.ones(size, 100)
        def step():
            loss = (model(x) + model(x)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss
        return step
    make_step(1)()
    before = [p.clone() for p in model.parameters()]
    moments = {{k: v.clone() for k, v in optimizer.state[model.weight].items()}}
    def mapped():
        return int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    room = 550_000_000  # 400 MB are needed for 163,840 examples, 800 for twice that: far from both
    resource.setrlimit(resource.RLIMIT_AS, (mapped() + room, -1))
    for start in (81_920, 163_840):  # again, because the first sweep has freed all memory
        sweep = batch_size_sweep(
            make_step, model, optimizer, start=start, maximum=10**9, seconds_per_size=0.2, tracking_uri={uri!r}
        )
        print(json.dumps([(s.batch_size, s.out_of_memory) for s in sweep.sizes]))
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert all(torch.equal(v, optimizer.state[model.weight][k]) for k, v in moments.items())
    print(str(sweep).splitlines()[len(sweep.sizes)])
    print(str(sweep).splitlines()[-2])
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        # One arena: address space that a thread only reserves counts against the limit as well. A fixed threshold: otherwise malloc
        # keeps freed tensors of up to 32 MB, and how much address space they take differs between runs.
        env={**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "1000000"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    first, second, row, _ = done.stdout.splitlines()
    sizes = json.loads(first)
    assert sizes == [[81_920, False], [163_840, False], [327_680, True]]
    assert json.loads(second) == sizes[1:]
    assert row.split() == [f"{sizes[-1][0]:,}", "out", "of", "memory"]
    runs = runs_of(uri, EXPERIMENT)
    assert len(runs) == 5
    last = runs[len(sizes) - 1]
    assert last.data.params["batch_size"] == str(sizes[-1][0])
    assert last.data.tags[contract.TAG_STATUS] == "infeasible"
    assert last.data.tags[contract.TAG_ERROR].startswith("out of memory")
    assert last.info.status == "FAILED"
    assert {v.rule for v in analyzed(uri, EXPERIMENT).verdicts if v.status == "fired"} <= {"batch-throughput"}


def test_whatever_else_ends_a_step_is_the_users_to_see(uri: str) -> None:
    for error in (ValueError("shapes"), KeyboardInterrupt()):
        expected = Training().goes_on()
        training = Training()
        calls = iter(range(10**6))

        def step(training: Training = training, calls: object = calls, error: BaseException = error) -> torch.Tensor:
            loss = training.step()
            if next(calls) == 7:  # type: ignore[call-overload]
                training.model.eval()
                raise error
            return loss

        with pytest.raises(type(error)):
            batch_size_sweep(
                lambda size, step=step: step,  # type: ignore[misc]
                training.model,
                training.optimizer,
                maximum=1,
                also=[training.scheduler],
                experiment=type(error).__name__,
                tracking_uri=uri,
            )
        assert training.goes_on() == expected
    (crashed,) = runs_of(uri, "ValueError")
    (stopped,) = runs_of(uri, "KeyboardInterrupt")
    assert crashed.data.tags[contract.TAG_STATUS] == "infeasible"
    assert stopped.data.tags[contract.TAG_STATUS] == "stopped"


def test_a_run_that_is_active_is_left_alone(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_RUN_ID", "f" * 32)
    training = Training()
    training.model[1] = torch.nn.Identity()  # a batch of one has no statistics
    batch_size_sweep(make_step(training), training.model, training.optimizer, maximum=1, seconds_per_size=0.1, tracking_uri=uri)
    assert len(runs_of(uri, EXPERIMENT)) == 1


def throughputs(*values: float, spread: float = 0.01) -> BatchSizeSweep:
    sizes = [
        Throughput(2**i, v, (v * (1 - spread), v * (1 + spread)), (v * (1 - spread), v * (1 + spread)), 10, 100)
        if math.isfinite(v)
        else Throughput(2**i, out_of_memory=True)
        for i, v in enumerate(values)
    ]
    return BatchSizeSweep(tuple(sizes), "probe")


@pytest.mark.parametrize(
    ("sweep", "useful", "messages"),
    [
        (throughputs(100, 200, 390, 400, 405), 4, "stops growing at batch size 4"),
        (throughputs(100, 200, 390, 700, math.nan), 8, "the largest that fits"),
        (throughputs(100, 200, 390, 700), 8, "still grows"),
        (throughputs(100, 200, 390, 420, 450), 16, "still grows"),  # bit by bit, beyond a tenth in the end
        (throughputs(100, 200, 260, spread=0.2), 2, "stops growing at batch size 2"),  # within noise
        (throughputs(100, 120, 140), 4, "No doubling of the batch size nearly doubled"),
        (throughputs(math.nan), None, "Not even batch size 1 fits"),
    ],
)
def test_the_largest_size_before_the_plateau(sweep: BatchSizeSweep, useful: int | None, messages: str) -> None:
    assert sweep.largest_useful == useful
    assert messages in str(sweep)


def test_a_measurement_ends_when_the_median_is_known() -> None:
    assert median_confidence_interval([3.0, 1.0, 2.0]) == (1.0, 3.0)
    assert median_confidence_interval(list(map(float, range(6)))) == (0.0, 5.0)
    low, high = median_confidence_interval(list(map(float, range(101))))
    assert (low, high) == (40.0, 60.0)  # from tables of the binomial distribution
    calls = []
    watch = Stopwatch(lambda: time.sleep(0.001) or 0.0, torch.device("cpu"), precision=10.0, seconds=60.0)
    watch.run(calls.append, lambda: len(calls) - 1)
    assert len(watch.blocks) == 6
    assert watch.blocks[-1].last_step == len(calls) - 1
    watch = Stopwatch(lambda: time.sleep(0.001) or 0.0, torch.device("cpu"), precision=1e-9, seconds=0.05)
    watch.run(calls.append, lambda: 0)
    assert len(watch.blocks) >= 3


def test_misuse_is_said_in_one_line(uri: str) -> None:
    training = Training()
    wrong: list[tuple[type[Exception], str, dict[str, object]]] = [
        (ValueError, "the largest batch size", {}),
        (ValueError, "below start", {"start": 8, "maximum": 4}),
        (ValueError, "start must be at least 1", {"start": 0, "maximum": 4}),
        (TypeError, "make_step must be a function", {"make_step": 3, "maximum": 4}),
        (TypeError, "no state_dict", {"also": [3], "maximum": 4}),
        (TypeError, "optimizer", {"optimizer": training.model, "maximum": 4}),
    ]
    for kind, message, settings in wrong:
        known = {"make_step": make_step(training), "model": training.model, "optimizer": training.optimizer}
        with pytest.raises(kind, match=message) as caught:
            batch_size_sweep(**{**known, **settings}, tracking_uri=uri)  # type: ignore[arg-type]
        assert "\n" not in str(caught.value)
    assert training.batches == []


def test_the_example(
    uri: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    script = str(Path(__file__).parents[4] / "examples" / "probe_batch_size.py")
    monkeypatch.setattr("sys.argv", [script, "--maximum", "32", "--seconds-per-size", "0.2"])
    runpy.run_path(script, run_name="__main__")
    out, err = capsys.readouterr()
    assert err == ""  # no terminal, no progress
    assert [record for record in caplog.records if record.name.startswith("advisor")] == []
    assert "batch size" in out
    assert len(runs_of(uri, "digits batch-size probe")) == 3

"""What the tags of a real run say of its data, its schedule, its average and its classes."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from mlflow.entities import Run
from torch import nn
from torch.optim import lr_scheduler, swa_utils
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from advisor import contract
from advisor_pytorch import TuningLogger
from advisor_pytorch.facts import averaging, data, discovery, run_tags
from advisor_pytorch.facts.chance_level import ChanceLevels, level
from advisor_pytorch.facts.observations import Observations

OnlyRun = Callable[[], Run]


class Digits(TensorDataset):
    classes = tuple("0123456789")

    def __init__(self, n: int) -> None:
        super().__init__(torch.randn(n, 4), torch.randint(10, (n,)))


class Stream(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        yield from torch.randn(8, 4)

    def __len__(self) -> int:  # a guess
        return 1_000_000


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.1), nn.Linear(8, 10))


class Seen:
    """Takes what observations note, as a logger does."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, steps: int | None = None) -> None:
        self.tags: dict[str, str] = {}
        self.warnings: list[str] = []
        self.by = Observations(
            model, [optimizer], self.tags.update, lambda key, text: self.warnings.append(text), steps
        )

    def json(self, tag: str) -> Any:
        return json.loads(self.tags[tag])


def test_a_run_says_all_of_it(uri: str, only_run: OnlyRun) -> None:
    model, train = network(), DataLoader(Digits(64), batch_size=8, shuffle=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    where = {"experiment": "test", "tracking_uri": uri}
    log = TuningLogger(
        model,
        optimizer,
        params={"lr": 0.01, "hf_token": "abc"},
        objective="val/accuracy",
        direction="maximize",
        max_train_steps=16,
        valid_loader=DataLoader(Digits(40), batch_size=20),
        **where,  # type: ignore[arg-type]
    )
    schedule = lr_scheduler.OneCycleLR(optimizer, 0.01, 16)  # after the logger, which is not told of it
    ema = swa_utils.AveragedModel(model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9))
    with log:
        for _ in range(4):
            for i, (x, y) in enumerate(log.batches(train)):
                loss = nn.functional.cross_entropy(model(x), y)
                loss.backward()
                if i % 2:
                    optimizer.step()
                    optimizer.zero_grad()
                    schedule.step()
                    ema.update_parameters(model)
                log.step(loss)
        log.evaluate({"val/accuracy": 0.5, "val/loss": 1.0})
    run = only_run()
    tags = run.data.tags
    plain = {
        contract.TAG_N_TRAIN: "64",
        contract.TAG_N_VALID: "40",
        contract.TAG_EVAL_BATCH_SIZE: "20",
        contract.TAG_SHUFFLE: "true",
        contract.TAG_STEPS_PER_EPOCH: "4",
        contract.TAG_MICRO_BATCHES: "2",
        contract.TAG_CLASSES: "10",
        contract.TAG_NORM_ORDER: "no-residuals",
        contract.TAG_COMPILED: "false",
        contract.TAG_MODEL: "Sequential",
    }
    assert {tag: tags.get(tag) for tag in plain} == plain
    objects = {
        contract.TAG_SCHEDULE: {"class": "OneCycleLR", "kind": "one-cycle"},
        contract.TAG_AVERAGING: {"class": "AveragedModel", "kind": "ema"},
        contract.TAG_PRECISION: {"parameters": "float32", "compute": "float32"},
        contract.TAG_REGULARISERS: {"dropout": 0.1, "weight_decay": 0.01},
        contract.TAG_CHANCE: {
            "train/loss": pytest.approx(math.log(10)),
            "val/accuracy": 0.1,
            "val/loss": pytest.approx(math.log(10)),
        },
    }
    assert {tag: json.loads(tags[tag]) for tag in objects} == objects
    assert json.loads(tags[contract.TAG_LOADER])["workers"] == 0
    assert json.loads(tags[contract.TAG_BATCH_NORM])["layers"] == 1
    assert json.loads(tags[contract.TAG_BACKENDS])["threads"] == 1
    assert run.data.params == {"lr": "0.01", "hf_token": "***"}
    assert not any(name.startswith("device/") for name in run.data.metrics)  # there is no GPU


def test_arguments_are_checked_and_believed(uri: str, start: Callable[..., TuningLogger]) -> None:
    for kind, wrong in ((ValueError, 1), (ValueError, ["one"]), (TypeError, "cat"), (TypeError, 2.5)):
        with pytest.raises(kind, match="classes"):
            start(uri, classes=wrong)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = Seen(model, optimizer, 100)
    found = lr_scheduler.StepLR(optimizer, 10)
    told = [lr_scheduler.ReduceLROnPlateau(optimizer)]
    seen.by.describe_setup(told, 3)
    seen.by.loaders(train=DataLoader(Digits(8)))
    seen.by.tags()
    assert seen.json(contract.TAG_SCHEDULE)["kind"] == "plateau"
    assert seen.tags[contract.TAG_CLASSES] == "3"
    assert found is not None


@pytest.mark.parametrize(
    ("shuffles", "make"),
    [
        (False, lambda d: DataLoader(d, 4)),
        (True, lambda d: DataLoader(d, 4, shuffle=True)),
        (True, lambda d: DataLoader(d, 4, sampler=WeightedRandomSampler([1.0] * 20, 20))),
        (True, lambda d: DataLoader(d, 4, sampler=DistributedSampler(d, 2, 0, shuffle=True))),
        (False, lambda d: DataLoader(d, 4, sampler=DistributedSampler(d, 2, 0, shuffle=False))),
        (True, lambda d: DataLoader(d, batch_sampler=BatchSampler(WeightedRandomSampler([1.0] * 20, 20), 4, True))),
        (True, lambda d: Accelerator(cpu=True).prepare(DataLoader(d, 4, shuffle=True))),
        (None, lambda d: DataLoader(d, 4, sampler=[3, 1, 2])),
    ],
)
def test_loaders(shuffles: bool | None, make: Callable[[Any], Any]) -> None:
    loader = make(Digits(20))
    assert data.shuffles(loader) is shuffles
    assert (data.examples(loader), data.batch_size(loader), data.classes(loader)) == (20, 4, 10)
    assert data.batches(loader) == len(loader)


def test_what_loaders_do_not_say_is_not_guessed() -> None:
    stream = DataLoader(Stream(), batch_size=2, num_workers=0)
    assert run_tags.training_loader_tags(stream).keys() == {contract.TAG_LOADER}
    assert (data.examples(stream), data.batches(stream), data.shuffles(stream)) == (None, None, None)
    assert run_tags.training_loader_tags(iter([1, 2])) == {}
    assert run_tags.validation_loader_tags([torch.zeros(2)] * 3) == {}
    assert data.classes(DataLoader(Subset(Digits(20), [1, 2]))) == 10
    assert data.classes(DataLoader(TensorDataset(torch.zeros(3)))) is None

    counted, listed = Digits(20), Digits(20)
    counted.targets, listed.targets = counted.tensors[1], [9] * 20  # type: ignore[attr-defined]
    assert data.class_counts(DataLoader(counted)) == counted.tensors[1].bincount(minlength=10).tolist()
    assert data.class_counts(DataLoader(Subset(listed, [1, 2]))) == [0] * 9 + [2]
    assert data.class_counts(DataLoader(Digits(20))) is None

    class Hostile:
        @property
        def dataset(self) -> object:
            raise RuntimeError("not now")

    model = network()
    seen = Seen(model, torch.optim.SGD(model.parameters(), lr=0.1))
    seen.by.loaders(train=Hostile())
    assert seen.warnings == ["a loader could not be described (RuntimeError: not now); training goes on"]


class ModelEma:
    """As timm has it."""

    def __init__(self, model: nn.Module) -> None:
        self.shadow = {name: p.detach().clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize(
    ("kind", "make"),
    [
        ("swa", swa_utils.AveragedModel),
        ("ema", lambda m: swa_utils.AveragedModel(m, multi_avg_fn=swa_utils.get_ema_multi_avg_fn())),
        ("ema", lambda m: swa_utils.AveragedModel(m, avg_fn=swa_utils.get_ema_avg_fn())),
        ("other", lambda m: swa_utils.AveragedModel(m, avg_fn=lambda a, b, n: (a + b) / 2)),
        ("ema", ModelEma),
    ],
)
def test_averages_are_found(kind: str, make: Callable[[nn.Module], Any]) -> None:
    model, other = network(), nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert discovery.discover(model, [optimizer], None).averaging is None
    unrelated, average = make(other), make(model)
    assert discovery.discover(model, [optimizer], None).averaging == {"class": type(average).__name__, "kind": kind}
    assert averaging.describe([unrelated], model) is None


def test_schedulers_are_found_without_being_told_of() -> None:
    model, other = network(), network()
    optimizer, accelerator = torch.optim.SGD(model.parameters(), lr=0.1), Accelerator(cpu=True)
    of_another = lr_scheduler.StepLR(torch.optim.SGD(other.parameters(), lr=0.1), 3)
    assert discovery.discover(model, [optimizer], 100).schedule is None
    plateau = lr_scheduler.ReduceLROnPlateau(optimizer)
    found = discovery.discover(model, [optimizer], 100).schedule
    assert found == {"class": "ReduceLROnPlateau", "kind": "plateau"}
    plateau.state_dict()  # from now on the garbage collector sees its attributes as a dictionary
    assert discovery.discover(model, [optimizer], 100).schedule == found
    del plateau
    parts = [lr_scheduler.LinearLR(optimizer, 0.1), lr_scheduler.CosineAnnealingLR(optimizer, 90)]
    sequence = accelerator.prepare(lr_scheduler.SequentialLR(optimizer, parts, [10]))
    assert discovery.discover(model, [accelerator.prepare(optimizer)], 100).schedule == {
        "class": "SequentialLR",
        "kind": "warmup+cosine",
    }
    assert (of_another, sequence) is not None


def test_the_graph_of_the_first_loss_is_enough() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    seen = Seen(layer, optimizer)
    assert seen.by.wants_loss
    seen.by.loss(layer(torch.randn(3, 2, 8)).sum())
    assert not seen.by.wants_loss
    assert seen.tags[contract.TAG_NORM_ORDER] == "post-norm"
    blind = Seen(layer, optimizer)
    blind.by.loss(0.5)  # only what PyTorch's own layers are set to
    assert blind.tags[contract.TAG_NORM_ORDER] == "post-norm"
    assert "compute" not in blind.json(contract.TAG_PRECISION)


@pytest.mark.parametrize(
    ("metric", "value"),
    [
        ("val/accuracy", 0.1),
        ("eval_acc", 0.1),
        ("val/top5_acc", 0.5),
        ("val/error", 0.9),
        ("val/top_5_error", 0.5),
        ("error_rate", 0.9),
        ("loss", math.log(10)),
        ("val_nll", math.log(10)),
        ("perplexity", 10.0),
        ("val/mse_loss", None),
        ("val/mean_squared_error", None),
        ("f1", None),
        ("accumulated", None),
        ("train/examples_per_s", None),
        ("train/grad_norm", None),
    ],
)
def test_chance_by_the_name(metric: str, value: float | None) -> None:
    assert level(metric, 10) == (None if value is None else pytest.approx(value))


def test_chance_in_percent() -> None:
    levels = ChanceLevels(10)
    assert levels.update({"acc": 0.9, "top5_error": 40.0, "loss": 3.0})
    assert levels.levels == pytest.approx({"acc": 0.1, "top5_error": 50.0, "loss": math.log(10)})
    assert not levels.update({"acc": 0.95, "loss": 0.1})
    assert levels.update({"acc": 12.0})
    assert not levels.update({"acc": 0.5, "top5_error": 0.4})
    assert levels.levels["acc"] == pytest.approx(10.0)


def test_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    config = tmp_path / "run.yaml"
    config.touch()
    monkeypatch.setattr(sys, "orig_argv", ["python", "train.py", f"--config={config}", "--api-key", "abc", "no.yaml"])
    assert run_tags.command() == f"python train.py --config={config} --api-key '***' no.yaml"
    assert run_tags.config_files(sys.orig_argv) == [str(config)]
    for name, value in (("TORCHELASTIC_RUN_ID", "none"), ("GROUP_WORLD_SIZE", "2"), ("LOCAL_WORLD_SIZE", "8")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "orig_argv", ["/usr/bin/python3", "-u", "train.py", "--lr", "1"])
    assert run_tags.command() == "torchrun --nnodes=2 --nproc-per-node=8 train.py --lr 1"
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "ipykernel_launcher", "-f", "kernel-1.json"])
    monkeypatch.setitem(sys.modules, "ipykernel", sys)
    monkeypatch.setenv("JPY_SESSION_NAME", "/work/my study.ipynb")
    assert run_tags.command() == "jupyter notebook '/work/my study.ipynb'"


def test_the_command_of_a_process_of_multiprocessing_is_its_parents(monkeypatch: pytest.MonkeyPatch) -> None:
    handed = "from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=4, pipe_handle=6)"
    monkeypatch.setattr(sys, "orig_argv", ["/usr/bin/python", "-c", handed, "--multiprocessing-fork"])
    monkeypatch.setattr(sys, "argv", ["train.py", "--lr", "0.1", "--api-key", "s3cret"])
    monkeypatch.setattr(sys, "executable", "/usr/bin/python")
    assert run_tags.command() == "/usr/bin/python train.py --lr 0.1 --api-key '***'"

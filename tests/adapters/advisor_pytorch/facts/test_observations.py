"""Tags of a real run about its data, schedule, averages and classes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler, swa_utils
from torch.utils.data import DataLoader

from advisor import contract
from advisor_pytorch import TuningLogger
from advisor_pytorch.facts.observations import ChanceLevels, chance_level_of
from tests.adapters.fixture_types import OnlyRun
from tests.adapters.samples import Digits, Seen, network


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
    schedule = lr_scheduler.OneCycleLR(optimizer, 0.01, 16)  # created after the logger, without its knowledge
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
        contract.TAG_CHANCE_LEVEL: {
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


def test_the_graph_of_the_first_loss_is_enough() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    seen = Seen(layer, optimizer)
    assert seen.by.wants_loss
    seen.by.inspect_loss(layer(torch.randn(3, 2, 8)).sum())
    assert not seen.by.wants_loss
    assert seen.tags[contract.TAG_NORM_ORDER] == "post-norm"
    blind = Seen(layer, optimizer)
    blind.by.inspect_loss(0.5)  # only the settings of PyTorch's own layers
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
    assert chance_level_of(metric, 10) == (None if value is None else pytest.approx(value))


def test_chance_in_percent() -> None:
    levels = ChanceLevels(10)
    assert levels.update({"acc": 0.9, "top5_error": 40.0, "loss": 3.0})
    assert levels.levels == pytest.approx({"acc": 0.1, "top5_error": 50.0, "loss": math.log(10)})
    assert not levels.update({"acc": 0.95, "loss": 0.1})
    assert levels.update({"acc": 12.0})
    assert not levels.update({"acc": 0.5, "top5_error": 0.4})
    assert levels.levels["acc"] == pytest.approx(10.0)

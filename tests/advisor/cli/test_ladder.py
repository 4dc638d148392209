"""`advisor ladder` on a real MLflow store: one experiment per size, one with all sizes, errors."""

import json
import math
import re
import shutil
from functools import partial

import numpy as np
import pytest
from commands import outcome_of
from mlflow.entities import Metric, Param
from mlflow.tracking import MlflowClient

from advisor.history.ladder import Ladder

pytestmark = pytest.mark.xdist_group("ladder")  # they share a store

RATES = [2.0**-k for k in range(10, 2, -1)]
SIZES = {1_000: 0.02, 4_000: 0.01, 16_000: 0.005}
"""Best rate of each number of parameters."""


def log(client, name, sizes, fact="advisor.model_parameters", rates=RATES):
    experiment = client.create_experiment(name)
    rng = np.random.default_rng(0)
    for size, best in sizes.items():
        for rate in rates:
            for seed in range(2):
                run = client.create_run(experiment, tags={fact: str(size)}).info.run_id
                settings = {"lr": rate, "width": round(math.sqrt(size)), "seed": seed}
                params = [Param(key, str(value)) for key, value in settings.items()]
                far = math.log2(rate / best)
                loss = 1 + 5 / math.sqrt(size) + 0.05 * far**2 + 0.01 * rng.standard_normal()
                client.log_batch(run, [Metric("val_loss", loss + 1 / s, 1000 + s, s) for s in (1, 2, 10**9)], params)
                client.set_terminated(run, "FINISHED")


@pytest.fixture(scope="module")
def uri(tmp_path_factory, empty_store):
    uri = f"sqlite:///{shutil.copy(empty_store, tmp_path_factory.mktemp('store') / 'mlflow.db')}"
    client = MlflowClient(uri)
    log(client, "all", SIZES)
    for size, best in SIZES.items():
        log(client, f"size-{size}", {size: best})
    log(client, "unnamed", {1_000: 0.02}, fact="own")
    log(client, "one-rate", {1_000: 0.02}, rates=[0.01])
    return uri


@pytest.fixture
def advisor(capsys, uri, monkeypatch):
    """Runs `advisor ladder`: (exit status, standard output, standard error)."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    return partial(outcome_of, capsys, "ladder")


def test_one_experiment_with_all_sizes(advisor):
    status, out, _ = advisor("all")
    assert status == 0
    first, following, last, empty, *table = out.splitlines()
    assert first.startswith("The best lr falls with the size: a factor of 0.2")
    assert first.endswith("from 1,000 to 16,000 parameters (95 % interval). Do not use the same rate at another size.")
    assert following.startswith("At 64,000 parameters: best lr 0.00")
    assert last.startswith("The smaller sizes predicted for 16,000: best lr 0.0")
    assert last.endswith("best val_loss needs a third size (90 % intervals); the rate was right.")
    assert empty == ""
    assert table[0].split() == ["parameters", "trials", "best", "lr", "best", "val_loss"]
    assert [line.split()[:2] for line in table[1:4]] == [["1,000", "16"], ["4,000", "16"], ["16,000", "16"]]


def test_one_experiment_per_size_says_the_same(advisor):
    together, apart = (json.loads(advisor(*names, "--json")[1]) for names in (["all"], [f"size-{s}" for s in SIZES]))
    assert Ladder.model_validate(together).transfer == "moves"
    assert [r["size"] for r in apart["rungs"]] == [r["size"] for r in together["rungs"]]
    assert apart["factor"]["value"] == pytest.approx(together["factor"]["value"], rel=0.2)


def test_a_hyperparameter_is_the_size(advisor):
    status, out, _ = advisor("all", "--size", "width", "--next", "200", "--brief")
    brief = json.loads(out)
    assert status == 0
    assert brief["action"].startswith("The best lr falls with the size")
    assert (brief["size"], brief["next"]["size"]) == ("width", 200)
    out = advisor("all", "--size", "width", "--next", "200")[1]
    assert re.search(r"from width \d+ to \d+ \(95 % interval\)", out)
    assert "\nAt width 200: best lr " in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["unnamed"], "no trial of unnamed logged its number of parameters; pass --size NAME"),
        (["all", "--size", "depth"], "no trial of all logged a number for depth"),
        (["size-1000"], "a ladder needs two model sizes with at least 4 learning rates each"),
        (["size-1000", "all"], "two studies have the size 1,000; pass only one of them"),
        (["size-1000", "one-rate"], "no learning rate varies in all studies"),
    ],
)
def test_errors_take_one_line(advisor, arguments, message):
    status, _, error = advisor(*arguments)
    assert status == 2
    assert message in error
    assert len(error.splitlines()) == 1

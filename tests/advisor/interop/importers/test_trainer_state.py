"""States that Hugging Face's Trainer saved in real, small trainings."""

import json
import pickle
import shutil

import pytest
from imports import Bomb, assert_same, stored

from advisor.tracking import read_study
from advisor.tracking.stores.reading import read_experiment

pytestmark = pytest.mark.xdist_group("trainer state")  # they share a training

RATES = [1e-3, 1e-2, 1e-1]


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    transformers = pytest.importorskip("transformers")
    import torch

    class Line(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.line = torch.nn.Linear(4, 1)

        def forward(self, x, labels):
            predicted = self.line(x)
            return {"loss": (predicted - labels).square().mean(), "logits": predicted}

    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(64, 4, generator=generator)
    data = [{"x": x, "labels": x.sum(0, keepdim=True)} for x in inputs]
    folder = tmp_path_factory.mktemp("outputs")
    for rate in RATES:
        transformers.set_seed(0)
        arguments = transformers.TrainingArguments(
            output_dir=str(folder / f"lr{rate}"),
            learning_rate=rate,
            max_steps=24,
            per_device_train_batch_size=8,
            logging_steps=2,
            eval_strategy="steps",
            eval_steps=4,
            save_steps=8,
            save_total_limit=2,
            load_best_model_at_end=True,
            metric_for_best_model="loss",
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
        )
        trainer = transformers.Trainer(Line(), arguments, train_dataset=data, eval_dataset=data[:16])
        trainer.train()
        (folder / f"lr{rate}/training_args.json").write_text(json.dumps({"learning_rate": rate, "seed": 42}))
    return folder


def history(state):
    found = {}
    for entry in json.loads(state.read_text())["log_history"]:
        for key, value in entry.items():
            if key != "step":
                found.setdefault(key, []).append((entry["step"], float(value)))
    return found


def last(output):
    return max(output.glob("checkpoint-*"), key=lambda p: int(p.name.split("-")[1])) / "trainer_state.json"


def test_the_last_checkpoint_of_each_run_counts(outputs, imported, uri):
    expected = {f"lr{rate}": history(last(outputs / f"lr{rate}")) for rate in RATES}
    assert len(expected["lr0.1"]["eval_loss"]) == 6
    name = outputs.name
    experiment = imported(["trainer-state", outputs], name, expected)
    run = next(run for run in experiment.runs if run.name == "lr0.01")
    assert run.params == {"learning_rate": "0.01", "seed": "42"}
    assert (run.tags["advisor.max_train_steps"], run.tags["advisor.batch_size"]) == ("24", "8")
    study = read_study(name, tracking_uri=uri)
    assert (study.spec.objective.metric, study.spec.objective.direction) == ("eval_loss", "minimize")
    assert {t.status for t in study.trials} == {"complete"}


def test_a_training_that_went_on_is_completed(outputs, tmp_path, advisor, uri):
    whole = last(outputs / "lr0.01")
    state = json.loads(whole.read_text())
    early = {**state, "global_step": 8, "log_history": [e for e in state["log_history"] if e["step"] <= 8]}
    for step, content in ((8, early), (24, state)):
        folder = tmp_path / f"run/checkpoint-{step}"
        folder.mkdir(parents=True)
        (folder / "trainer_state.json").write_text(json.dumps(content))
        assert advisor("import", tmp_path / "run")[0] == 0
        status = "KILLED" if step == 8 else "FINISHED"
        assert [r.status for r in read_experiment("run", tracking_uri=uri).runs] == [status]
    assert_same(stored(uri, "run"), {"run": history(whole)})


def test_pickles_are_never_opened(outputs, tmp_path, advisor, refused):
    folder = tmp_path / "run/checkpoint-24"
    folder.mkdir(parents=True)
    shutil.copy(last(outputs / "lr0.1"), folder)
    for name in ("training_args.bin", "optimizer.pt", "scheduler.pt"):
        (folder / name).write_bytes(pickle.dumps(Bomb(tmp_path / "exploded")))
    assert advisor("import", "trainer-state", tmp_path / "run")[0] == 0
    assert "pickles such as training_args.bin are not read" in refused("trainer-state", folder / "training_args.bin")
    assert not (tmp_path / "exploded").exists()


def test_hyperparameters_of_a_model_card(outputs, tmp_path, advisor, uri):
    folder = tmp_path / "run"
    folder.mkdir()
    shutil.copy(last(outputs / "lr0.1"), folder)
    card = "---\nlicense: x\n---\n# run\n\n### Training hyperparameters\n\n- learning_rate: 0.1\n- total_train_batch_size: 64\n"
    (folder / "README.md").write_text(card + "\n### Framework versions\n\n- Transformers 5\n- odd: 1\n")
    assert advisor("import", folder)[0] == 0
    (run,) = read_experiment("run", tracking_uri=uri).runs
    assert run.params == {"learning_rate": "0.1", "total_train_batch_size": "64"}
    assert run.tags["advisor.batch_size"] == "64"


BAD = [
    ('{"log_history": [{"step": 1, "loss"', "is not JSON"),
    ("[]", "has no log_history"),
    ('{"log_history": 3}', "is not a list of entries"),
    ('{"log_history": [{"step": 1.5, "loss": 1}]}', "the step '1.5' is not a whole number"),
    ('{"log_history": [{"step": 1e30, "loss": 1}]}', "is too large"),
    ("[" * 100_000, "is not JSON"),
]


@pytest.mark.parametrize(("text", "message"), BAD)
def test_bad_states_are_refused(tmp_path, refused, text, message):
    (tmp_path / "trainer_state.json").write_text(text)
    assert message in refused("trainer-state", tmp_path)


def test_folders_without_a_state_are_refused(tmp_path, refused):
    assert "no trainer_state.json there" in refused("trainer-state", tmp_path)

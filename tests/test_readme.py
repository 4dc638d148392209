"""The README and the guides are true: their commands run, their code works, in an empty folder, on a real training."""

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
from commands import status_of

pytestmark = pytest.mark.xdist_group("readme")  # they share the trainings
CHECKOUT = Path(__file__).parents[1]
GUIDES = [CHECKOUT / "docs" / f"{name}.md" for name in ("logging", "importing", "analyzing", "rounds", "running")]
README = (CHECKOUT / "README.md").read_text()
TEXT = README + "".join(guide.read_text() for guide in GUIDES)

ELSEWHERE = {"pip install -e .": ("-e '.[demo]'", CHECKOUT / "Makefile")}
"""Commands that CI runs by itself, and where."""
NOT_DECIDED = 3
"""Exit status of `advisor gate` where it asks for more seeds, as the guide's table makes it do."""

PRELUDE = """
import sys, torch
rate = float(sys.argv[1])
torch.manual_seed(0)
inputs = torch.randn(512, 8)
targets = (inputs[:, 0] + inputs[:, 1] > 0).long()
loader = list(zip(inputs.split(16), targets.split(16))) * 10
valid_loader = [(inputs, targets)]
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=rate)
loss_of = torch.nn.CrossEntropyLoss()
def evaluate(model):
    return (model(inputs).argmax(1) != targets).float().mean().item()
"""
TRAIN_THREE_TIMES = """
import runpy, sys
sys.path.insert(0, "")
for rate in ("0.001", "0.01", "0.1"):
    sys.argv = ["train.py", rate]
    runpy.run_path("train.py", run_name="__main__")
"""
"""Runs the script with three learning rates in one process, which imports PyTorch and MLflow once."""
OBJECTIVE = "objective = lambda trial: trial.suggest_float('lr', 1e-5, 1e-3, log=True) ** -0.1"


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)


def commands():
    return [line.removeprefix("$ ") for block in blocks("console") for line in block.splitlines() if line.startswith("$ ")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """An empty folder after the README's training was run there with a few learning rates."""
    folder = tmp_path_factory.mktemp("user")
    hook, *_ = blocks("python")
    (folder / "train.py").write_text(PRELUDE + hook.replace('"learning_rate": 0.01', '"learning_rate": rate'))
    search = next(code for code in blocks("python") if "create_study(" in code)
    code = "\n".join([TRAIN_THREE_TIMES, OBJECTIVE, search])
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=420, check=False)
    assert done.returncode == 0, done.stderr
    _write_tables(folder)
    (folder / "results.tsv").write_text(next(text for text in blocks("text") if text.startswith("commit\t")))
    return folder


def _write_tables(folder):
    import pyarrow as pa
    import pyarrow.parquet as pq

    trial = {"study": "s", "trial": "t", "params": '{"lr": 0.1}', "status": "complete", "seed": 1, "extra": "{}"}
    trial |= {"objective": "val/loss", "direction": "min"}
    pq.write_table(pa.Table.from_pylist([trial]), folder / "trials.parquet")
    point = {"study": "s", "trial": "t", "metric": "val/loss", "value": 0.5, "time_s": 1.0}
    pq.write_table(pa.Table.from_pylist([{**point, "step": s} for s in (1, 2)]), folder / "curves.parquet")


def split_by_the_shell(command, folder):
    """Return the arguments of a command as bash expands them."""
    done = subprocess.run(["bash", "-c", f"printf '%s\\0' {command}"], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.split("\0")[:-1]


def test_every_command_runs_in_order(folder, monkeypatch, capfd):
    monkeypatch.chdir(folder)
    for command in dict.fromkeys(commands()):
        if command in ELSEWHERE:
            needle, script = ELSEWHERE[command]
            assert needle in script.read_text()
            continue
        assert command.startswith("advisor "), f"no test runs {command!r}"
        assert not set(command) & set("|&;<>"), f"{command!r} needs a shell"
        status = status_of(*split_by_the_shell(command, folder)[1:])
        out, err = capfd.readouterr()
        expected = NOT_DECIDED if command.startswith("advisor gate ") else 0
        assert status == expected, f"{command}: {err}"
        assert out


def test_the_python_interface(folder, monkeypatch):
    monkeypatch.chdir(folder)
    exec(next(code for code in blocks("python") if "analyze(" in code), {})


def test_every_logger_has_the_arguments_that_it_needs():
    from advisor_pytorch import TuningLogger

    signature, calls = inspect.signature(TuningLogger), []
    for page in (CHECKOUT / "README.md", *sorted((CHECKOUT / "docs").glob("*.md"))):
        for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
            nodes = (node for node in ast.walk(ast.parse(block)) if isinstance(node, ast.Call))
            calls += [(page.name, node) for node in nodes if getattr(node.func, "id", "") == "TuningLogger"]
    for page, call in calls:
        assert signature.bind(*call.args, **{keyword.arg: keyword.value for keyword in call.keywords}), page
    assert {page for page, _ in calls} >= {"README.md", "guard.md"}


def test_the_loop_over_trials(folder, monkeypatch):
    loop = next(code for code in blocks("python") if "open_study(" in code)
    study = "study: looped\nobjective: {metric: loss, direction: minimize}\nparameters: {lr: {low: 0.1, high: 1}}\ntrials: 2\n"
    (folder / "study.yaml").write_text(study)
    monkeypatch.chdir(folder)
    names = {"train": lambda lr, seed: lr + seed}
    exec(loop, names)
    trial = names["trial"]
    assert (trial.number, trial.outcome.status) == (1, "complete")


def test_what_it_names_is_there():
    links = re.findall(r"\]\(([^)h#][^)#]*)[^)]*\)", README)
    for path in links + re.findall(r"`((?:examples|benchmarks)/[\w./]+)`", TEXT):
        assert (CHECKOUT / path).exists(), path


def test_the_number_of_rules_is_right():
    from advisor.engine.registry import load_rules

    assert f"knows {len(load_rules())} rules" in README

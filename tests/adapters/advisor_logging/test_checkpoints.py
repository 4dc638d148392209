from __future__ import annotations

import json
import math
import random
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from advisor_logging.checkpoints import CheckpointFolder, RunInfo, read_checkpoints

ABOUT = RunInfo("val/loss", "minimize")


def write(text: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(text)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_the_best_and_the_last_are_kept(tmp_path: Path) -> None:
    kept = CheckpointFolder(tmp_path / "run", 2, ABOUT)
    values = [3.0, 1.0, math.nan, 2.0, 2.0, 5.0]
    offered = [kept.save(step, step + 1, value, write(f"{step}")) for step, value in enumerate(values)]
    assert offered == [True, True, False, True, True, True]
    assert [(c.step, c.value) for c in kept.existing_set.best] == [(1, 1.0), (3, 2.0)]  # of equal values the earlier one
    assert kept.existing_set.last is not None
    assert kept.existing_set.last.step == 5
    assert names(tmp_path / "run") == {"step-000000001.pt", "step-000000003.pt", "step-000000005.pt", "checkpoints.json"}
    assert (tmp_path / "run" / "step-000000003.pt").read_text() == "3"
    tag = json.loads(kept.describe())
    assert (tag["policy"], tag["chosen"], [c["step"] for c in tag["kept"]]) == ("best-2+last", 1, [1, 3, 5])
    assert "resumes" not in tag
    assert json.loads(CheckpointFolder(tmp_path / "run", 2, ABOUT, resumes=True).describe()) == {**tag, "resumes": True}
    assert not CheckpointFolder(tmp_path / "none", 0, ABOUT).save(1, 2, 0.0, write(""))
    assert not (tmp_path / "none").exists()


def test_higher_is_better_where_the_objective_is_maximized(tmp_path: Path) -> None:
    kept = CheckpointFolder(tmp_path / "run", 1, replace(ABOUT, direction="maximize"))
    for step, value in enumerate([0.1, 0.9, 0.5]):
        kept.save(step, step + 1, value, write(""))
    assert [c.step for c in kept.existing_set.all] == [1, 2]


def test_what_was_kept_before_is_ranked_along(tmp_path: Path) -> None:
    first = CheckpointFolder(tmp_path / "run", 2, ABOUT)
    for step, value in ((9, 0.5), (19, 0.1), (29, 0.3)):
        first.save(step, step + 1, value, write(f"first {step}"))
    (tmp_path / "run" / ".partial").mkdir()
    (tmp_path / "run" / ".partial" / "step-000000039.pt").write_text("torn off")
    again = CheckpointFolder(tmp_path / "run", 2, ABOUT)
    assert again.existing_set == first.existing_set
    assert not (tmp_path / "run" / ".partial").exists()
    again.save(29, 30, 0.2, write("again 29"))  # saved again, with a better value
    again.save(39, 40, 0.4, write("again 39"))
    assert [(c.step, c.path.read_text()) for c in again.existing_set.all] == [
        (19, "first 19"),
        (29, "again 29"),
        (39, "again 39"),
    ]
    other = CheckpointFolder(tmp_path / "run", 2, replace(ABOUT, objective="val/error"))
    assert other.existing_set.all == ()  # values of another objective do not compare


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
    kept = CheckpointFolder(folder, 1, ABOUT)
    assert kept.existing_set.all == ()
    for step, value in ((1, 0.5), (2, 0.4), (3, 0.6)):
        assert kept.save(step, step + 1, value, write("new"))
    assert [c.step for c in kept.existing_set.all] == [2, 3]
    assert [path.read_text() for path in mine] == ["mine"] * 3


def test_deleted_files_are_forgotten(tmp_path: Path) -> None:
    kept = CheckpointFolder(tmp_path / "run", 2, ABOUT)
    for step, value in ((1, 0.1), (2, 0.2), (3, 0.3)):
        kept.save(step, step + 1, value, write(""))
    kept.existing_set.best[0].path.unlink()
    assert kept.path_at_step(1) is None
    assert json.loads(kept.describe())["chosen"] == 2
    kept.save(4, 5, 0.4, write(""))
    assert [c.step for c in kept.existing_set.all] == [2, 3, 4]
    manifest_of = tmp_path / "run"
    for path in manifest_of.iterdir():
        path.unlink()
    manifest_of.rmdir()
    assert kept.existing_set.all == ()
    kept.save(5, 6, 0.5, write(""))
    assert names(manifest_of) == {"step-000000005.pt", "checkpoints.json"}


def test_a_folder_is_kept_as_one(tmp_path: Path) -> None:
    def save(path: Path) -> None:
        (path / "shards").mkdir(parents=True)
        (path / "shards" / "0").write_text(str(path.name))
        (path / "link").symlink_to("nowhere")

    kept = CheckpointFolder(tmp_path / "run", 1, ABOUT, suffix="")
    for step, value in ((1, 0.3), (2, 0.1), (3, 0.2), (4, 0.1)):
        kept.save(step, step + 1, value, save)
    assert names(tmp_path / "run") == {"step-000000002", "step-000000004", "checkpoints.json"}
    assert (tmp_path / "run" / "step-000000002" / "shards" / "0").read_text() == "step-000000002"


def test_a_save_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    def half(path: Path) -> None:
        path.mkdir()
        (path / "a").write_text("a")
        raise RuntimeError("torn")

    kept = CheckpointFolder(tmp_path / "run", 1, ABOUT)
    kept.save(1, 2, 0.5, write("good"))
    before = names(tmp_path / "run")
    for save, message in ((half, "torn"), (lambda path: None, "wrote no file")):
        with pytest.raises((RuntimeError, OSError), match=message):
            kept.save(2, 3, 0.1, save)
        assert names(tmp_path / "run") == before
    (tmp_path / "run" / "checkpoints.json").unlink()
    (tmp_path / "run" / "checkpoints.json").mkdir()  # a list that cannot be replaced
    with pytest.raises(OSError):
        kept.save(3, 4, 0.1, write("unlisted"))
    assert names(tmp_path / "run") == before
    assert [c.step for c in kept.existing_set.all] == [1]


def test_killed_at_any_moment_what_is_listed_is_whole(tmp_path: Path) -> None:
    code = """
    import sys, time
    from pathlib import Path
    from advisor_logging.checkpoints import CheckpointFolder
    from advisor_logging.checkpoints import RunInfo
    def save(path):
        path.mkdir()
        for i in range(20):
            (path / str(i)).write_text("x" * 10_000)
    kept = CheckpointFolder(Path(sys.argv[1]), 3, RunInfo("val/loss", "minimize"), "")
    first = max((c.step for c in kept.existing_set.all), default=0) + 1
    print(first, flush=True)
    for step in range(first, 10**6):
        kept.save(step, step + 1, (step * 7919) % 101 / 101, save)
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
        while read_checkpoints(folder, "val/loss")[1] in (None, last):  # may take long on a busy machine
            assert process.poll() is None
            time.sleep(0.005)
        time.sleep(delays.uniform(0.0, 0.15))
        process.kill()
        process.wait()
        process.stdout.close()
        kept, last = read_checkpoints(folder, "val/loss")
        assert last is not None
        reached = last.step
        for checkpoint in kept:
            assert {p.name: p.stat().st_size for p in checkpoint.path.iterdir()} == {str(i): 10_000 for i in range(20)}

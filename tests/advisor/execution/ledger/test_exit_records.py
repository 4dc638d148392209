"""Exit records: kept by a launcher while it lives, delivered by the next one after it fails."""

import threading
from pathlib import Path

from filelock import FileLock
from forks import run_script
from launches import SPEC, Background, begun, claim, make_plan

from advisor.execution import Ledger, jobs
from advisor.execution.engines import Exit
from advisor.execution.ledger.exit_records import ExitRecord, ExitRecords
from advisor.tracking.stores.location import parse_tracking_uri

KEEPER = """
import os, sys
from pathlib import Path
from advisor.execution.engines import Exit
from advisor.execution.ledger.exit_records import ExitRecord, ExitRecords
from advisor.tracking.stores.location import parse_tracking_uri
ExitRecords(Path("out put"), parse_tracking_uri("mlflow.db"), "e").keep(ExitRecord("trial-0", sys.argv[1], Exit(0)))
os._exit(9)
"""


def test_the_next_launcher_delivers_the_records_of_a_failed_one(training):
    spec = SPEC.model_copy(update={"trials": 1})
    ledger = Ledger(parse_tracking_uri("mlflow.db"), "e", spec)
    run_id = claim(ledger, jobs(spec)[0])
    ledger.log(run_id, {1: (0.25, 0)})
    assert run_script(KEEPER, training, run_id)[0] == 9
    (training / "go").touch()
    assert Background(make_plan(training, spec, "sqlite:///other.db")).end() == {(0, 0): "complete"}  # knows nothing of it
    assert begun(training) == ["0"]
    assert Background(make_plan(training, spec)).end() == {(0, 0): "complete"}
    assert begun(training) == ["0"]
    assert not list((training / "out put").glob(".*.lock"))


def test_the_records_of_a_running_launcher_are_left_to_it(training):
    spec = SPEC.model_copy(update={"trials": 1})
    ledger = Ledger(parse_tracking_uri("mlflow.db"), "e", spec)
    run_id = claim(ledger, jobs(spec)[0])
    ledger.log(run_id, {1: (0.25, 0)})
    living = ExitRecords(training / "out put", parse_tracking_uri("mlflow.db"), "e")
    living.keep(ExitRecord("trial-0", run_id, Exit(1, last_line="no data")))
    assert Background(make_plan(training, spec)).end() == {}
    assert [entry.state for entry in ledger.entries()] == ["busy"]
    living.close()  # it has given up, and lives on
    assert Background(make_plan(training, spec)).end() == {(0, 0): "infeasible"}
    assert begun(training) == []


def test_no_launcher_takes_a_record_that_another_is_delivering(tmp_path):
    store, over, taken = parse_tracking_uri(str(tmp_path / "mlflow.db")), threading.Event(), []

    def look():
        other = ExitRecords(tmp_path, store, "e")
        while not over.is_set():
            taken.extend(other.read_left_records())

    lookers = [threading.Thread(target=look) for _ in range(2)]
    for looker in lookers:
        looker.start()
    mine = ExitRecords(tmp_path, store, "e")
    for i in range(100):
        mine.keep(ExitRecord(f"trial-{i}", "run", Exit(0)))
        mine.forget(f"trial-{i}")
    over.set()
    for looker in lookers:
        looker.join()
    assert taken == []
    assert not list(tmp_path.iterdir())


def test_a_lock_whose_file_another_launcher_removes_is_made_again(tmp_path, monkeypatch):
    store = parse_tracking_uri(str(tmp_path / "mlflow.db"))
    own, other = ExitRecords(tmp_path, store, "e"), ExitRecords(tmp_path, store, "e")
    acquire, locks = FileLock.acquire, []

    def acquire_and_lose(lock, *args, **options):
        proxy = acquire(lock, *args, **options)
        if not locks:
            Path(lock.lock_file).unlink()
        locks.append(lock.lock_file)
        return proxy

    monkeypatch.setattr(FileLock, "acquire", acquire_and_lose)
    own.keep(ExitRecord("trial-0", "run", Exit(0)))
    assert len(set(locks)) == 2
    assert list(other.read_left_records()) == []
    assert other.others_have_records

"""Work in several processes, of which some die and some cannot be started."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

from advisor.workers import each


def _work(task: str) -> str:
    if task == "raises":
        raise OSError("no such disk")
    if task == "dies":
        os._exit(7)
    return task.upper()


def _died(task: str, status: int | None) -> str:
    return f"{task} {status}"


@contextmanager
def _no_more_files() -> Iterator[None]:
    """Within it nothing more can be opened, so that no process can be started."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    next_file = os.open(os.devnull, os.O_RDONLY)
    os.close(next_file)
    resource.setrlimit(resource.RLIMIT_NOFILE, (next_file, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_what_raises_or_dies_takes_only_its_own_task_along():
    assert [*each(_work, ["a", "raises", "dies", "b"], jobs=1, died=_died)] == ["A", "raises 1", "dies 7", "B"]


def test_where_no_process_can_be_started_each_task_is_told_of():
    with _no_more_files():
        assert [*each(_work, ["a", "b"], jobs=2, died=_died)] == ["a None", "b None"]


def test_where_no_more_processes_can_be_started_the_others_do_the_work():
    def tasks() -> Iterator[str]:
        yield "a"
        with _no_more_files():
            yield "b"

    assert [*each(_work, tasks(), jobs=2, died=_died)] == ["A", "B"]

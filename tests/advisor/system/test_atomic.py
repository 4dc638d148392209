"""Atomic writes; tests/trust has those for killed processes and full disks."""

import pytest

from advisor.system.atomic import UNFINISHED_SUFFIX, write_files


def test_a_replaced_file_keeps_its_mode_and_a_new_one_has_the_usual_mode(tmp_path):
    secret, shared, plain = tmp_path / "secret", tmp_path / "shared", tmp_path / "plain"
    for path, mode in ((secret, 0o600), (shared, 0o664)):
        path.write_text("old")
        path.chmod(mode)
    plain.touch()
    write_files({secret: "new", shared: "new", tmp_path / "new": "new"})
    modes = [path.stat().st_mode & 0o777 for path in (secret, shared, tmp_path / "new")]
    assert modes == [0o600, 0o664, plain.stat().st_mode & 0o777]
    assert {path.read_text() for path in (secret, shared, tmp_path / "new")} == {"new"}


@pytest.mark.parametrize("sweeps", [True, False])
def test_temporary_files_of_killed_processes_are_swept_on_request(tmp_path, sweeps):
    left = tmp_path / f".a.1{UNFINISHED_SUFFIX}"
    left.touch()
    write_files({tmp_path / "a": "new"}, durable=False, sweeps=sweeps)
    assert left.exists() is not sweeps

"""The folder of the trainings."""

import pytest
from engine_tasks import SCRIPT


@pytest.fixture
def folder(tmp_path, monkeypatch):
    own = tmp_path / "Ünï code"
    own.mkdir()
    monkeypatch.chdir(own)
    (own / "train.py").write_text(SCRIPT)
    return own

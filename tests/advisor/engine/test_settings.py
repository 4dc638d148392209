import pytest

from advisor.engine.settings import find_settings
from advisor.model.errors import AdvisorError


def test_the_nearest_settings_count(tmp_path):
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    (tmp_path / "advisor.toml").write_text("[rules.r]\nedge = 0.1\n")
    assert find_settings(inner) == {"r": {"edge": 0.1}}
    (tmp_path / "a" / "pyproject.toml").write_text("[tool.advisor.rules.r]\nedge = 0.2\n")
    assert find_settings(inner) == {"r": {"edge": 0.2}}


@pytest.mark.parametrize(
    ("text", "message"),
    [("rules = 3", "one table for each rule"), ("colour = 1", "no setting 'colour'"), ("[rules", "not readable as TOML")],
)
def test_bad_settings(tmp_path, text, message):
    (tmp_path / "advisor.toml").write_text(text)
    with pytest.raises(AdvisorError, match=message):
        find_settings(tmp_path)

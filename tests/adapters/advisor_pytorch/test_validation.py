import pytest

from advisor_pytorch.validation import check_objective


@pytest.mark.parametrize(
    ("objective", "given", "direction"),
    [
        ("val/accuracy", None, "maximize"),
        ("val/loss", None, "minimize"),
        ("quality", "maximize", "maximize"),
        ("val/accuracy", "maximize", "maximize"),
    ],
)
def test_the_direction_follows_from_the_name_unless_it_is_given(objective, given, direction):
    assert check_objective({}, objective, given) == direction


def test_a_name_that_says_nothing_needs_a_direction():
    with pytest.raises(ValueError, match="'quality' does not say whether lower or higher values are better: pass direction="):
        check_objective({}, "quality", None)


@pytest.mark.parametrize(("objective", "given"), [("val/accuracy", "minimize"), ("val_loss", "maximize")])
def test_a_direction_that_contradicts_the_name_is_an_error(objective, given):
    with pytest.raises(ValueError, match=f"direction={given!r} contradicts the name of the objective {objective!r}"):
        check_objective({}, objective, given)

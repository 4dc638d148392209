import pytest

from advisor_pytorch.validation import MissingObjective, check_objective


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


@pytest.mark.parametrize(
    ("evaluations", "warnings"),
    [
        ([["val/error"]] * 9, ["they contain val/error; did you mean objective='val/error'?"]),
        ([["accuracy", "loss"]] * 9, ["they contain accuracy, loss"]),
        ([["val/error"]] * 2 + [["val/err"]] + [["val/error"]] * 9, []),
        ([["train/error"]] * 9, []),
        ([["val/error"]] * 2, []),
    ],
)
def test_an_objective_that_is_never_evaluated_gets_one_warning(evaluations, warnings):
    said = []
    watch = MissingObjective("val/err", lambda key, text: said.append(text))
    for metrics in evaluations:
        watch.note_metrics(metrics)
    assert len(said) == len(warnings)
    assert all(
        text.startswith("the first 3 evaluations lack the objective 'val/err'") and text.endswith(end)
        for text, end in zip(said, warnings, strict=True)
    )

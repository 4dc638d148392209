import pytest

from advisor_pytorch.evaluation import MissingObjective


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

"""What all exports share: refusals, comments and the command."""

import pytest
from exports import PLAIN

from advisor.cli import main
from advisor.interop.exports import KINDS, export
from advisor.model.errors import AdvisorError
from advisor.model.spec_yaml import format_study_file, parse_study_file
from advisor.planning.sampling.halton import draw_trials


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "optuna"])
@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ("a: {low: 0, high: 1}\n  b: {role: derived, formula: 2 * a}", "compute 'b' from other hyperparameters"),
        ("a: {choices: [x, y]}\n  b: {low: 0, high: 1, when: {a: x}}", "search 'b' only under a condition"),
        ("a: {low: 0.9, high: 0.99, scale: reverse-log}", "search 'a' on a reverse-log scale"),
        ("a: {low: 0, high: 1}\nforbidden:\n- where: {a: {low: 0.5}}", "leave out forbidden regions"),
    ],
)
def test_what_a_tool_cannot_say_is_refused(kind, parameters, message):
    spec = parse_study_file(f"study: s\nobjective: {{metric: m, direction: minimize}}\nparameters:\n  {parameters}\n")
    with pytest.raises(AdvisorError, match=f"cannot {message}; --points exports"):
        export(kind, spec)
    if "when" not in parameters:
        assert export(kind, spec, points=list(draw_trials(spec, 3)))


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_of_a_study_is_dropped_silently(kind):
    text = export(kind, PLAIN, points=list(draw_trials(PLAIN, 2)))
    if kind != "algoperf":
        for line in ("max_train_steps: 1000", "schedule: {kind: cosine}"):
            assert f"To be set in the training: {line}" in text
        assert "# Note: keep the best checkpoint" in text
        assert "first line import os" in text


def test_the_command_writes_what_the_library_gives(tmp_path, capsys):
    (tmp_path / "study.yaml").write_text(format_study_file(PLAIN))
    main(["export", "ray", str(tmp_path / "study.yaml"), "--out", str(tmp_path / "space.py")])
    assert (tmp_path / "space.py").read_text() == export("ray", PLAIN)
    main(["export", "wandb", str(tmp_path / "study.yaml"), "--points", "-n", "2", "--skip", "1"])
    assert capsys.readouterr().out == export("wandb", PLAIN, points=list(draw_trials(PLAIN, 2, skip=1)))
    with pytest.raises(SystemExit, match="2"):
        main(["export", "wandb", str(tmp_path / "study.yaml"), "-n", "2"])
    assert "add --points, which exports trials instead of the space" in capsys.readouterr().err


def test_a_file_that_a_person_has_changed_stays(tmp_path, capsys):
    study, out = tmp_path / "study.yaml", tmp_path / "space.py"
    study.write_text(format_study_file(PLAIN))
    words = ["export", "ray", str(study), "--out", str(out)]
    main(words)
    main(words)  # the same text does no harm
    out.write_text("train()")
    with pytest.raises(SystemExit, match="2"):
        main(words)
    assert "exists already; pass another --out, or --force" in capsys.readouterr().err
    assert out.read_text() == "train()"
    main([*words, "--force"])
    assert out.read_text() == export("ray", PLAIN)

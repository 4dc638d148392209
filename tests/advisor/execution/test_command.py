"""What each trial is given: its words, its places."""

import sys

import pytest

from advisor.cli import main
from advisor.execution import job_env
from advisor.execution.command import check, fill
from advisor.execution.engines.devices import make_slots
from advisor.execution.engines.process import Exit
from advisor.execution.job import default_seed, jobs
from advisor.model.errors import AdvisorError
from advisor.model.spec import Objective, Parameter, Sampler, StudySpec
from advisor.model.spec_yaml import dump

SPEC = StudySpec(
    study="s",
    objective=Objective(metric="loss", direction="minimize"),
    parameters={
        "lr": Parameter(low=0.001, high=1, scale="log"),
        "nesterov": Parameter(type="bool"),
        "momentum": Parameter(low=0, high=0.9, when={"nesterov": True}),
    },
    trials=20,
)
PARAMS = {"lr": 0.1, "nesterov": True}


@pytest.mark.parametrize(
    ("words", "filled"),
    [
        (["t", "--lr={lr}", "{nesterov}"], ["t", "--lr=0.1", "true"]),
        (["t"], ["t", "--lr", "0.1", "--nesterov", "true"]),
        (["t", "{args}", "-v"], ["t", "--lr", "0.1", "--nesterov", "true", "-v"]),
        (["t", "{{lr}} is {lr}"], ["t", "{lr} is 0.1"]),
        # What names no hyperparameter gets them all.
        (["t", "{seed}", '{"a": 1}'], ["t", "7", '{"a": 1}', "--lr", "0.1", "--nesterov", "true"]),
        # A trial without momentum leaves out the option that asks for it, and nothing else.
        (["t", "--momentum", "{momentum}", "--lr", "{lr}"], ["t", "--lr", "0.1"]),
        (["t", "--momentum={momentum}", "{lr}"], ["t", "0.1"]),
        (["t", "--flag", "x{momentum}", "{lr}"], ["t", "--flag", "0.1"]),
    ],
)
def test_placeholders(words, filled):
    assert fill(words, PARAMS, {"seed": "7"}) == filled


def test_nothing_is_appended_where_the_environment_is_read():
    assert fill(["t"], PARAMS, {}, append=False) == ["t"]


def test_what_nothing_fills_is_refused():
    with pytest.raises(AdvisorError, match=r"\{l_r\}, which is no hyperparameter of the study; did you mean \{lr\}"):
        check(["t", "{l_r}"], SPEC.parameters, ["seed"])
    with pytest.raises(AdvisorError, match="max_train_steps}, which the study does not say"):
        check(["t", "{max_train_steps}"], SPEC.parameters, ["seed"])
    check(["t", "{lr}", "{seed}", "{{anything}}"], SPEC.parameters, ["seed"])


@pytest.mark.parametrize(
    "words",
    [
        ["t"],
        ["t", "{seed}", "{trial}", "{study}", "{run_id}"],
        ["t", "{json}", "{seed}"],
        ["t", "{args}", "{lr}"],
        ["t", "{lr}", "{nesterov}", "{momentum}"],
    ],
)
def test_commands_that_pass_all_that_is_searched(words):
    job_env.check(SPEC, words)


@pytest.mark.parametrize("words", [["t", "{lr}", "{nesterov}"], ["t", "{lr}", "{nesterov}", "--more={args}"]])
def test_a_searched_hyperparameter_that_is_left_out_is_refused(words):
    with pytest.raises(
        AdvisorError, match=r"does not pass momentum, .* add --momentum \{momentum\}, .*--no-args .*ADVISOR_PARAMS"
    ):
        job_env.check(SPEC, words)
    job_env.check(SPEC, words, append=False)


def test_what_is_computed_from_a_searched_one_stands_in_for_it():
    spec = SPEC.model_copy(
        update={
            "parameters": {
                "momentum": Parameter(low=0.5, high=0.99, scale="reverse-log"),
                "effective_lr": Parameter(low=0.001, high=1, scale="log"),
                "lr": Parameter(role="derived", formula="effective_lr * (1 - momentum)"),
            }
        }
    )
    job_env.check(spec, ["t", "{lr}", "{momentum}"])
    with pytest.raises(AdvisorError, match=r"does not pass momentum, which"):
        job_env.check(spec, ["t", "{lr}"])
    with pytest.raises(AdvisorError, match=r"does not pass lr, which .* add --lr \{lr\}"):
        job_env.check(spec, ["t", "{momentum}"])


def test_run_refuses_before_it_begins_and_shows_all_that_it_appends(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.yaml").write_text(dump(SPEC.model_copy(update={"trials": 2})))
    for more in (["--dry-run"], []):
        with pytest.raises(SystemExit) as ended:
            main(["run", "s.yaml", *more, "--", "t", "--lr", "{lr}"])
        assert ended.value.code == 2
        error = capsys.readouterr().err
        assert "does not pass nesterov, momentum, which the study searches" in error
        assert error.count("\n") == 1
    assert [p.name for p in tmp_path.iterdir()] == ["s.yaml"]
    main(["run", "s.yaml", "--dry-run", "--", "t", "--seed", "{seed}"])
    assert all("--lr " in line and "--nesterov " in line for line in capsys.readouterr().out.splitlines())
    main(["run", "s.yaml", "--dry-run", "--no-args", "--", "t", "{lr}"])


def test_a_study_that_follows_results_has_no_commands_beforehand(tmp_path, capsys):
    file = tmp_path / "s.yaml"
    file.write_text(dump(SPEC.model_copy(update={"sampler": Sampler(kind="adaptive")})))
    with pytest.raises(SystemExit) as ended:
        main(["run", str(file), "--dry-run", "--", "t"])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert "leave --dry-run out, with --trials 1 to try one" in error
    assert error.count("\n") == 1


def test_each_trial_has_a_seed_of_its_own_and_each_round_others():
    assert [j.seed for j in jobs(SPEC, 3, first_seed=5)] == [5, 6, 7]
    later = SPEC.model_copy(update={"round": 3})
    assert default_seed(SPEC) == 0
    assert default_seed(later) > default_seed(SPEC.model_copy(update={"round": 2})) > 100


def test_repeated_trials_have_the_same_seeds_each():
    found = jobs(SPEC.model_copy(update={"seeds": 2}), 3, first_seed=5)
    assert [(j.number, j.repeat, j.seed) for j in found] == [
        (0, 0, 5),
        (1, 0, 5),
        (2, 0, 5),
        (0, 1, 6),
        (1, 1, 6),
        (2, 1, 6),
    ]
    assert found[0].params == found[3].params != found[1].params
    assert len({j.name for j in found}) == 6
    assert jobs(SPEC)[:3] == tuple(j for j in jobs(SPEC, 3))
    with pytest.raises(AdvisorError, match="--trials"):
        jobs(SPEC.model_copy(update={"trials": None}))


def test_each_study_has_a_study_folder_its_own(tmp_path):
    names = ["a-b", "a/b", "a b", "été", "..", "/"]
    folders = {job_env.study_folder(tmp_path, name) for name in names}
    assert len(folders) == len(names)
    assert job_env.study_folder(tmp_path, "a-b") == tmp_path / "a-b"
    assert all(folder.parent == tmp_path and folder.name.strip(".") for folder in folders)


def test_gpus_are_handed_out_whole(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert [s["CUDA_VISIBLE_DEVICES"] for s in make_slots(["0", "1", "2", "3"], 2, None)] == ["0,1", "2,3"]
    assert make_slots(["0", "1"], 1, 1) == [{"CUDA_VISIBLE_DEVICES": "0"}]
    assert make_slots([], None, None) == [{}]
    assert all("CUDA_VISIBLE_DEVICES" not in s for s in make_slots(["0"], 0, 3))
    assert all(int(s["OMP_NUM_THREADS"]) >= 1 for s in make_slots([], None, 3))
    with pytest.raises(AdvisorError, match="3 trials at a time with 1 GPUs each need 3, and there are 2"):
        make_slots(["a", "b"], 1, 3)
    with pytest.raises(AdvisorError, match="lower --gpus-per-trial"):
        make_slots(["a"], 2, None)
    with pytest.raises(AdvisorError, match="2 GPUs, and none were found here"):
        make_slots([], 2, None)


@pytest.mark.parametrize(
    ("ended", "reason"),
    [
        (Exit(1, last_line="torch.OutOfMemoryError: CUDA out of memory."), "out of memory: torch.OutOfMemoryError"),
        (Exit(-9), "killed, perhaps because memory was out"),
        (Exit(-11), "ended by signal SIGSEGV"),
        (Exit(-40), "ended by signal 40"),
        (Exit(2, last_line="usage"), "exit status 2: usage"),
        (Exit(-15, timed_out=True), "timeout"),
    ],
)
@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_how_a_process_ended_in_words(ended, reason):
    assert not ended.ok
    assert ended.reason.startswith(reason)

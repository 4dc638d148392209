import json
import math
import re

import pytest
import yaml
from hypothesis import given, settings, strategies as st
from jsonschema import Draft202012Validator
from promise import ALL

from advisor.model.errors import AdvisorError
from advisor.model.reading import Reading
from advisor.model.spec import SAME_IN_ALL_TRIALS, Bounds, Checkpoints, Objective, Parameter, Region, Sampler, StudySpec
from advisor.model.spec_yaml import format_study_file, load_study_file, parse_study_file, study_file_schema

HEAD = "study: s\nobjective: {metric: val/loss, direction: minimize}\n"

texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=30)
finite = st.floats(allow_nan=False, allow_infinity=False)
values = st.one_of(st.booleans(), st.integers(-(10**12), 10**12), finite, texts)


@st.composite
def parameters(draw):
    why = draw(st.none() | texts)
    kind = draw(st.sampled_from(["float", "int", "reverse", "choices", "fixed", "bool"]))
    if kind == "fixed":
        return Parameter(role="fixed", value=draw(values), why=why)
    role = draw(st.sampled_from(["nuisance", "scientific"]))
    if kind == "bool":
        return Parameter(role=role, type="bool", why=why)
    if kind == "choices":
        return Parameter(
            role=role, choices=tuple(draw(st.lists(values, min_size=1, max_size=4, unique_by=lambda v: (type(v), v)))), why=why
        )
    low = draw(st.floats(1e-10, 1e3))
    scale = draw(st.sampled_from(["linear", "log"]))
    if kind == "reverse":
        return Parameter(role=role, low=1 - 2 * low, high=1 - low, scale="reverse-log", why=why)
    if kind == "int":
        return Parameter(role=role, type="int", low=math.ceil(low), high=math.ceil(low) + 7, scale=scale, why=why)
    limits = draw(st.sampled_from([None, (None, low * 10), (low / 2, None), (low, low * 20)]))
    return Parameter(role=role, type="float", low=low, high=low * 10, scale=scale, limits=limits, why=why)


@st.composite
def regions(draw, names):
    bounds = st.one_of(
        st.builds(Bounds, low=finite),
        st.floats(-1e6, 1e6).map(lambda low: Bounds(low=low, high=low + 1)),
        st.builds(Bounds, choices=st.lists(values, min_size=1, max_size=3).map(tuple)),
    )
    where = draw(st.dictionaries(st.sampled_from(names), bounds, min_size=1, max_size=2))
    return Region(where=where, why=draw(st.none() | texts))


@st.composite
def specs(draw):
    names = draw(st.lists(texts, max_size=4, unique=True))
    searched = {name: draw(parameters()) for name in names}
    derived = {}
    if names and "derived" not in names and "equal" not in names and not set("{}") & set(names[0]) and names[0].strip():
        formula = f"2 * {{{names[0]}}}" if names[0] == names[0].strip() else "2 * 3"
        derived["derived"] = Parameter(role="derived", formula=formula, why=draw(st.none() | texts))
        derived["equal"] = Parameter(low=0.0, high=1.0, equals="derived / 2")
    return StudySpec(
        study=draw(texts),
        goal=draw(st.text(st.characters(codec="utf-8"), max_size=30)),
        round=draw(st.integers(1, 9)),
        parent=draw(st.none() | texts),
        objective=Objective(metric=draw(texts), direction=draw(st.sampled_from(["minimize", "maximize"]))),
        parameters=searched | derived,
        forbidden=tuple(draw(st.lists(regions(names), max_size=2))) if names else (),
        checkpoints=draw(st.none() | st.builds(Checkpoints, keep_best=st.none() | st.integers(1, 9), every=st.just(100))),
        trials=draw(st.none() | st.integers(1, 500)),
        sampler=Sampler(seed=draw(st.integers(0, 10))),
        max_train_steps=draw(st.none() | st.integers(1, 10**6)),
        schedule=draw(st.none() | st.dictionaries(texts, values, max_size=2)),
        notes=tuple(draw(st.lists(texts, max_size=3))),
    )


@settings(max_examples=300 if ALL else 100, deadline=None)
@given(specs())
def test_what_is_written_is_read_back_unchanged(spec):
    text = format_study_file(spec)
    again = parse_study_file(text)
    assert again == spec
    assert format_study_file(again) == text


@pytest.fixture(scope="module")
def validator():
    Draft202012Validator.check_schema(study_file_schema())
    return Draft202012Validator(study_file_schema())


@settings(max_examples=100, deadline=None)
@given(spec=specs())
def test_what_is_written_fits_the_published_schema(validator, spec):
    validator.validate(yaml.safe_load(format_study_file(spec)))


@pytest.mark.parametrize(
    "wrong",
    [
        {"trials": 0},
        {"trials": 10**9},
        {"seeds": 10**9},
        {"forbiden": []},
        {"parameters": {"a": {"scale": "ln"}}},
        {"sampler": {"kind": 1}},
    ],
)
def test_the_schema_refuses_what_is_wrong(validator, wrong):
    right = {"study": "s", "objective": {"metric": "m", "direction": "minimize"}}
    assert validator.is_valid(right)
    assert not validator.is_valid(right | wrong)


@settings(max_examples=100, deadline=None)
@given(specs())
def test_a_plain_yaml_reader_reads_the_same(spec):
    data = yaml.safe_load(format_study_file(spec))
    for name, parameter in spec.parameters.items():
        read = data["parameters"][name]
        if parameter.numeric:
            assert (float(read["low"]), float(read["high"])) == (parameter.low, parameter.high)
            assert not isinstance(read["low"], str)
        if parameter.role == "fixed":
            assert read["value"] == parameter.value
            assert type(read["value"]) is type(parameter.value)


def test_numbers_as_people_write_them_are_numbers():
    spec = parse_study_file(HEAD + "parameters:\n  lr: {low: 1e-5, high: 1e-2, scale: log}\n  wd: {role: fixed, value: 1e-4}\n")
    assert spec.parameters["lr"].low == 1e-5
    assert spec.parameters["wd"].value == 1e-4


def test_a_comment_says_what_the_round_before_did():
    before = parse_study_file(HEAD + "parameters:\n  lr: {low: 1e-5, high: 1e-3, scale: log}\n  wd: {low: 0, high: 1}\n")
    after = parse_study_file(
        HEAD + "parameters:\n  lr: {low: 1e-5, high: 1e-1, scale: log}\n  wd: {low: 0, high: 1}\n  do: {low: 0, high: 1}\n"
    )
    text = format_study_file(after, parent=before)
    assert "# the preceding round searched 1e-05 to 0.001 (log)" in text
    assert "# new in this round" in text
    assert text.count("    # ") == 2
    assert text.startswith("# Written by advisor to follow s.")
    assert parse_study_file(text) == after
    assert "# the preceding round tried 1e-05 to 0.001 (log)" in format_study_file(after, parent=before, inferred={"lr"})


def test_a_comment_holds_no_invisible_characters() -> None:
    hidden = "\u202egnp.exe\u2066"
    before = parse_study_file(HEAD + f"parameters:\n  a: {{choices: [x, {json.dumps(hidden)}]}}\n")
    after = parse_study_file(HEAD + "parameters:\n  a: {choices: [x, y]}\n")
    comment = next(line for line in format_study_file(after, parent=before).splitlines() if "the preceding round" in line)
    assert comment.strip() == "# the preceding round searched x, \ufffdgnp.exe\ufffd"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a study file is a mapping"),
        ("- 1", "a study file is a mapping"),
        ("study: [1", "line 1"),
        (HEAD + "foo: 1\n", "line 3, foo: is not a key"),
        (HEAD + "study: t\n", "line 3: 'study' appears twice"),
        (HEAD + "trials: many\n", "line 3, trials: must be a whole number, not 'many'"),
        (HEAD + "trials: 2.5\n", "line 3, trials: must be a whole number, not 2.5"),
        (HEAD + "parameters: [1]\n", "line 3, parameters: must be a mapping$"),
        (HEAD + f"parameters:\n  lr: {{low: {'x' * 999}, high: 2}}\n", "parameters.lr.low: must be a number, not 'x{59}…$"),
        (HEAD + "trails: 3\n", "line 3, trails: is not a key of a study file; did you mean 'trials'.$"),
        (HEAD + "parameters:\n  lr: {low: 1, high: 2, scael: log}\n", "did you mean 'scale'"),
        (HEAD + "sampler: {sede: 1}\n", "did you mean 'seed'"),
        (HEAD + "parameters:\n  lr: {low: 1, high: 0}\n", "line 4, parameters.lr: low .1. must be less than high"),
        (HEAD + "parameters:\n  lr:\n    role: nuisance\n    low: 1\n    hihg: 2\n", "line 7, parameters.lr.hihg"),
        (HEAD + "parameters:\n  a: {role: fixed, value: 1, when: {b: 2}}\n", "depends on 'b'"),
        (
            HEAD + "parameters:\n  a: {value: 1, role: fixed, when: {b: 1}}\n  b: {value: 1, role: fixed, when: {a: 1}}\n",
            "circular",
        ),
        (HEAD + "parameters:\n  a: {low: 0, high: 1, when: {b: z}}\n  b: {choices: [x, y]}\n", "not one of its choices"),
        (HEAD + "parameters:\n  a: {type: int, low: 0.3, high: 0.7}\n", "line 4, parameters.a: no whole number"),
        (HEAD + "parameters:\n  a: {type: int, role: fixed, value: 2.5}\n", "cannot have the value 2.5"),
        (HEAD + "parameters:\n  a: {choices: [1, 1]}\n", "appears twice"),
        (HEAD + "parameters:\n  a: {low: -1.7e308, high: 1.7e308}\n", "too wide"),
        (HEAD + "parameters:\n  a: {role: derived}\n", "line 4, parameters.a: a derived parameter needs a formula"),
        (
            HEAD + "parameters:\n  a: {role: derived, formula: b}\n",
            "line 4, parameters.a.formula: 'b' refers to 'b', which is not",
        ),
        (HEAD + "parameters:\n  a: {low: 0, high: 1, equals: b}\n", "line 4, parameters.a.equals: 'b' refers to 'b'"),
        (HEAD + "parameters:\n  a: {low: 0, high: 1, equals: 2 * a}\n", "refers to 'a' itself"),
        (HEAD + "parameters:\n  a: {role: derived, formula: b}\n  b: {role: derived, formula: a}\n", "is circular"),
        (HEAD + "parameters:\n  a: {role: derived, formula: a.b()}\n", "may contain only numbers"),
        (HEAD + "parameters:\n  a: {role: fixed, value: 1, equals: '2'}\n", "only a searched parameter"),
        (HEAD + "forbidden:\n- why: x\n  where:\n    lr: {low: 1}\n", "line 6, forbidden.0.where.lr: 'lr' is not in the"),
        (HEAD + "forbidden:\n- where: {}\n", "line 4, forbidden.0.where"),
        (HEAD + "parameters:\n  a: {low: 0, high: 1}\nforbidden:\n- where: {a: {}}\n", "line 6.*give low, high or both"),
        (HEAD + "checkpoints: {keep_best: 0}\n", "line 3, checkpoints.keep_best"),
        (HEAD + "sampler: {kind: sobol}\n", "line 3, sampler.kind"),
        (
            "study: s\nobjective: {metric: m, direction: up}\n",
            "line 2, objective.direction: must be 'minimize' or 'maximize', not 'up'",
        ),
        ("objective: {metric: m, direction: minimize}\n", "study: is missing"),
        ("a: &a [1]\nb: *a\n", "aliases are not allowed"),
        ("study: !!python/object/apply:os.system ['true']", "tags such as .* are not allowed"),
        ("[" * 5000, "study file"),
        ("\x00", "not readable|not allowed"),
    ],
)
def test_a_bad_file_gets_one_line_with_the_place(text, message):
    with pytest.raises(AdvisorError, match=message) as caught:
        parse_study_file(text)
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(AdvisorError, match="cannot read the study file"):
        load_study_file(tmp_path / "none.yaml")
    with pytest.raises(AdvisorError, match="cannot read the study file"):
        load_study_file(tmp_path)
    (tmp_path / "b.yaml").write_bytes(b"study: \xff\xfe")
    with pytest.raises(AdvisorError, match="not UTF-8"):
        load_study_file(tmp_path / "b.yaml")


def refusal(text):
    """Why the text is no study file; None where it is one."""
    try:
        parse_study_file(text, source="study.yaml")
    except AdvisorError as error:
        return str(error)
    return None


@settings(max_examples=300 if ALL else 100, deadline=None)
@given(specs(), st.data())
def test_a_file_with_a_slip_is_read_or_refused_in_one_line_with_its_place(spec, data):
    lines = format_study_file(spec).splitlines()
    at = data.draw(st.integers(0, len(lines) - 1))
    slip = data.draw(st.sampled_from(["drop", "twice", "key", "value", "indent", "character"]))
    line = lines[at]
    if slip == "character":
        place = data.draw(st.integers(0, max(len(line) - 1, 0)))
        line = line[:place] + data.draw(st.sampled_from(list("{}[]:,'\"#&*!|>%@`-x\t"))) + line[place + 1 :]
    changed = {
        "drop": [],
        "twice": [line, line],
        "key": [line.replace(":", "x:", 1)],
        "value": [line.split(":")[0] + ": [1, {a: b}]"],
        "indent": [" " + line],
        "character": [line],
    }[slip]
    text = "\n".join([*lines[:at], *changed, *lines[at + 1 :]]) + "\n"
    said = refusal(text)
    if said is not None:
        assert "\n" not in said
        assert re.match(r"study\.yaml(, line \d+|: a study file is a mapping|: not readable as YAML)", said)


def test_how_to_read_an_experiment_is_read_back():
    text = HEAD + "reading: {ignore: [tokens, name], population: all, kind: gan}\n"
    spec = parse_study_file(text)
    assert spec.reading == Reading(ignore=("tokens", "name"), population="all", kind="gan")
    assert parse_study_file(format_study_file(spec)) == spec


CONSTANT = Parameter(role="fixed", value=0.9, why=SAME_IN_ALL_TRIALS)


def test_constants_take_one_line_each():
    aim = Objective(metric="m", direction="minimize")
    names = {
        f"argument_{i}": Parameter(role="fixed", value=v, why=SAME_IN_ALL_TRIALS)
        for i, v in enumerate([1, True, "no", "1e3", 0.5])
    }
    inner = StudySpec(study="b", objective=aim, parameters={"beta": CONSTANT})
    spec = StudySpec(study="s", objective=aim, parameters={**names, "lr": Parameter(low=0.1, high=1)}, baseline=inner)
    text = format_study_file(spec)
    assert parse_study_file(text) == spec
    assert "constants:  # the same in every trial\n  argument_0: 1\n  argument_1: true\n" in text
    assert text.index("  lr:") < text.index("constants:")
    Draft202012Validator(study_file_schema()).validate(yaml.safe_load(text))


def test_what_the_last_round_did_differently_is_no_constant():
    aim = Objective(metric="m", direction="minimize")
    before = StudySpec(study="s", objective=aim, parameters={"beta": Parameter(low=0.5, high=0.9)})
    after = before.with_parameter("beta", CONSTANT)
    assert "constants" not in format_study_file(after, parent=before)
    assert "constants" in format_study_file(after, parent=after)


@pytest.mark.parametrize(
    ("constants", "message"),
    [
        ("3", "one line for each"),
        ("{a: [1]}", "constants.a: a constant is"),
        ("{lr: 1}", "constants.lr: it is also a parameter"),
    ],
)
def test_wrong_constants_are_refused(constants, message):
    text = "study: s\nobjective: {metric: m, direction: minimize}\nparameters: {lr: {low: 0.1, high: 1}}\n"
    with pytest.raises(AdvisorError, match=message):
        parse_study_file(f"{text}constants: {constants}\n")


def test_long_reasons_and_notes_continue_on_further_lines():
    why = "The best values lie at the upper end: # we extend by one decade, 'quoted', and the optimum may lie further. " * 4
    spec = parse_study_file(HEAD + "parameters:\n  lr: {low: 1, high: 2}\n")
    long = spec.model_copy(update={"notes": (why.strip(), "short")})
    long.parameters["lr"] = long.parameters["lr"].model_copy(update={"why": why.strip()})
    text = format_study_file(long)
    assert parse_study_file(text) == long
    assert max(map(len, text.splitlines())) <= 120

"""The texts of `advisor tune` about its decisions and its result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from advisor.model.spec import StudySpec
from advisor.model.words import capitalise, count, listed, plain_number, sentence, short_text
from advisor.planning.blocks import Block, TrainedTrial, leader
from advisor.planning.blocks.spaces import changed_hyperparameters

_BLOCK_GOALS = {
    "explore": "Explore the space",
    "extend": "Search a changed space",
    "probe": "Run a special study",
    "adaptive": "Search adaptively",
    "repeat": "Repeat the leading setting",
}
_BLOCK_REASONS = {
    "explore": "These trials cover the whole space.",
    "extend": "The first trials lie in the part that has no trials yet.",
    "probe": "Trials of this study cannot become the best setting.",
    "adaptive": "An adaptive sampler chooses these trials from all results so far.",
    "repeat": "One run proves little: runs with other seeds show whether this setting is really the best.",
}


def with_goal_and_reason(block: Block, previous: StudySpec | None, *, study: str, parent: str | None, round: int) -> Block:
    """Return the block with the decision as goal and the reasons as notes. previous: search space before this block, if any."""
    is_adaptive = block.kind == "extend" and block.spec.sampler.kind == "adaptive"
    why = _BLOCK_REASONS["adaptive" if is_adaptive else block.kind]
    new_fields = {
        "study": study,
        "parent": parent,
        "round": round,
        "goal": _goal_text_of_block(block, previous),
        "notes": (*(() if previous is None else _reasons_for_change(block, previous)), why),
        "predictions": block.spec.predictions if block.changes_space else (),
    }
    return Block(block.kind, block.spec.model_copy(update=new_fields))


def _goal_text_of_block(block: Block, previous: StudySpec | None) -> str:
    if previous is None or block.kind in ("adaptive", "repeat"):
        return _BLOCK_GOALS[block.kind]
    changed_names = changed_hyperparameters(previous, block.spec) if block.kind == "extend" else []
    if not changed_names or not all(block.spec.parameters[n].numeric and n in previous.searched for n in changed_names):
        return block.spec.goal or _BLOCK_GOALS[block.kind]
    # a search in blocks never narrows a range, so each changed range is wider
    return f"Widen {listed((_range_text(block.spec, n) for n in changed_names), len(changed_names))}"


def _range_text(spec: StudySpec, name: str) -> str:
    return f"{name}: {plain_number(spec.parameters[name].low)} to {plain_number(spec.parameters[name].high)}"


def _reasons_for_change(block: Block, previous: StudySpec) -> Iterator[str]:
    if block.kind in ("probe", "repeat"):
        return
    new = {name: block.spec.parameters[name] for name in changed_hyperparameters(previous, block.spec)}
    if new and block.kind == "adaptive":
        ranges = listed((_range_text(block.spec, name) for name in new), len(new))
        yield f"The model expects better results beyond the end of a range than inside, so widen {ranges}."
    elif block.kind != "adaptive":
        yield from dict.fromkeys(sentence(capitalise(p.why)) for p in new.values() if p.why)


def block_subject(block: Block, previous: StudySpec | None) -> str:
    if previous is None or block.kind in ("probe", "repeat"):
        return block.spec.probe or ""
    return " ".join(changed_hyperparameters(previous, block.spec))


def block_decision_line(number: int, block: Block, trials: Sequence[TrainedTrial]) -> str:
    size_text = count((block.spec.trials or 1) * (block.spec.seeds or 1), "trial")
    sentences = (sentence(block.spec.goal), *block.spec.notes, best_so_far_sentence(block.spec, trials))
    return f"Block {number}, {size_text}: {' '.join(filter(None, sentences))}"


def best_so_far_sentence(spec: StudySpec, trials: Sequence[TrainedTrial]) -> str:
    costs = [t.cost for t in trials if t.probe is None and not t.failed]
    if not costs:
        return "No trial has a result yet." if trials else ""
    return f"Best so far: {spec.objective.metric} {_objective_text(spec, min(costs))}."


def search_result_lines(spec: StudySpec, blocks: Sequence[Block]) -> Iterator[str]:
    trials = [t for b in blocks for t in b.trained]
    yield f"{count(len(trials), 'trial')} in {count(len(blocks), 'block')}."
    if not leader.any_setting_has_result(trials):
        yield "No setting has a result in all of its runs."
        return
    best_trials = leader.trials_of_best_setting(trials)
    block = next(b for b in blocks if best_trials[0] in b.trained)
    setting_texts = [f"{n} {short_text(v)}" for n, v in best_trials[0].setting.items() if n in block.spec.searched]
    metric, mean = spec.objective.metric, _objective_text(spec, leader.mean_cost(best_trials))
    yield f"Best setting: {', '.join(setting_texts)}."
    if len(best_trials) == 1:
        yield f"The only run of this setting has {metric} {mean}."
    else:
        extreme_values = [_objective_text(spec, end(t.cost for t in best_trials)) for end in (min, max)]
        interval = f"{extreme_values[0]} to {extreme_values[1]}"
        yield f"The {len(best_trials)} runs of this setting with different seeds have {metric} {mean} on average ({interval})."


def _objective_text(spec: StudySpec, cost: float) -> str:
    return f"{cost if spec.objective.direction == 'minimize' else -cost:.3g}"

"""The command `advisor ladder`."""

from __future__ import annotations

from typing import Literal

import click

from advisor.cli.brief import bounded_answer_json as brief_json, brief_option
from advisor.cli.options import direction_option, objective_option, tracking_option
from advisor.history.ladder import Estimate, FurtherRuns, Ladder, PredictionResult, SizePrediction, read_ladder
from advisor.model.reading import Reading
from advisor.model.words import align_columns, clean, count, listed, number
from advisor.tracking import read_study


@click.command()
@click.argument("experiments", nargs=-1, required=True)
@tracking_option
@click.option(
    "--size",
    metavar="NAME",
    help="Hyperparameter that is the model size.  [default: trained parameters, as the training hook logs]",
)
@click.option(
    "--next",
    "next_size",
    type=click.FloatRange(min=0, min_open=True),
    metavar="N",
    help="Model size to predict results for.  [default: the largest size times its ratio to the second largest]",
)
@objective_option
@direction_option
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@brief_option
def ladder(
    experiments: tuple[str, ...],
    tracking_uri: str | None,
    size: str | None,
    next_size: float | None,
    objective: str | None,
    direction: Literal["minimize", "maximize"] | None,
    as_json: bool,
    brief: bool,
) -> None:
    """Compare sweeps of the learning rate at several model sizes.

    The answer says whether the best learning rate changes with the model size, which best rate and objective value to expect at
    the next size, and whether the smaller sizes predicted the results of the largest size. EXPERIMENTS are one experiment per
    model size, or a single experiment with all sizes.

    \b
    advisor ladder sweep-10m sweep-40m sweep-160m               three sizes
    advisor ladder sweep --size n_embd --next 2048              one experiment in which the width varies
    """
    studies = [
        read_study(
            name,
            tracking_uri=tracking_uri,
            objective=objective,
            direction=direction,
            reading=Reading(population="all"),  # the default reads only the largest group of runs, which may be one model size
        )
        for name in dict.fromkeys(experiments)
    ]
    result = read_ladder(studies, size, next_size)
    if brief:
        click.echo(brief_json({"action": _rate_transfer_text(result), **result.model_dump()}))
    else:
        click.echo(result.ascii_json() if as_json else _ladder_text(result))


def _ladder_text(result: Ladder) -> str:
    lines = [_rate_transfer_text(result)]
    lines.append(f"At {_size_text(result, result.next.size)}: {_prediction_text(result, result.next)}.")
    if (last := result.last) is not None:
        verdict_words: dict[PredictionResult, str] = {"kept": "right", "not kept": "wrong", "cannot be told": "not decided"}
        rate_verdict = f"the rate was {verdict_words[result.last_rate]}"
        rate_verdict += f", the value {verdict_words[result.last_value]}" if last.value is not None else ""
        lines.append(f"The smaller sizes predicted for {_size(last.size)}: {_prediction_text(result, last)}; {rate_verdict}.")
    size_rows = [(result.size, "trials", f"best {clean(result.rate)}", f"best {clean(result.metric)}")]
    for r in result.rungs:
        rate = _interval_text(r.rate) + (f" (open: {r.open})" if r.open else "")
        size_rows.append((_size(r.size), f"{r.trials:,}", rate, _interval_text(r.value)))
    table = align_columns([tuple(clean(cell) for cell in row) for row in size_rows])
    return "\n".join([*lines, "", *table, *(["", *result.notes] if result.notes else [])])


def _rate_transfer_text(result: Ladder) -> str:
    rate, (first, *_, last) = clean(result.rate), result.rungs
    shift = f"a factor of {_interval_text(result.factor)} from {_size_text(result, first.size, last.size)}"
    if result.transfer == "stays":
        return f"The best {rate} stays within a factor of 2 over the sizes: {shift} (95 % interval)."
    if result.transfer == "moves":
        trend = "falls" if result.factor.value < 1 else "rises"
        return f"The best {rate} {trend} with the size: {shift} (95 % interval). Do not use the same rate at another size."
    open_end_texts = [f"{'below' if r.open == 'low' else 'above'} its sweep at {_size(r.size)}" for r in result.rungs if r.open]
    why = f"the best rate may lie {listed(open_end_texts, 4)}" if open_end_texts else f"{shift} (95 % interval)"
    return f"The sweeps do not show whether the best {rate} changes with the size: {why}. Run {listed(map(_runs, result.runs), 6)}."


def _runs(runs: FurtherRuns) -> str:
    rates_text = listed((number(r, 3) for r in runs.rates), 6)
    seeds_text = count(runs.seeds, "new seed")
    return f"{rates_text} at {_size(runs.size)} with {seeds_text}{' each' if runs.seeds > 1 or len(runs.rates) > 1 else ''}"


def _prediction_text(result: Ladder, predicted: SizePrediction) -> str:
    rate, metric = clean(result.rate), clean(result.metric)
    rate_text = "cannot be told" if predicted.rate is None else _interval_text(predicted.rate)
    value_text = "needs a third size" if predicted.value is None else _interval_text(predicted.value)
    return f"best {rate} {rate_text}, best {metric} {value_text} (90 % intervals)"


def _interval_text(estimate: Estimate) -> str:
    return f"{number(estimate.value, 3)} ({number(estimate.low, 3)} to {number(estimate.high, 3)})"


def _size(size: float) -> str:
    return number(round(size) if size >= 1000 else size, 4)


def _size_text(result: Ladder, *sizes: float) -> str:
    """Return one or two model sizes with their unit: `1,000 to 4,000 parameters`, `width 64 to 128`."""
    sizes_text = " to ".join(map(_size, sizes))
    return f"{sizes_text} parameters" if result.size == "parameters" else f"{clean(result.size)} {sizes_text}"

from __future__ import annotations

import math
from collections.abc import Iterator

from advisor.computed.batch import batches, timing
from advisor.computed.pipeline import ranks
from advisor.engine.rule import Rule, Share
from advisor.model.evidence import table
from advisor.model.finding import Finding, MissingData
from advisor.model.message import Code, Percent, say
from advisor.model.study import Study, Trial
from advisor_rules.pipeline._ranges import count_range_text

_TRAIN_BATCH, _EVAL_OPTION = "per_device_train_batch_size", "--per-device-eval-batch-size"
"""Transformers' hyperparameter for the training batch size, and its option for the evaluation batch size: a script with the
hyperparameter also accepts the option."""


class EvalBatch(Rule):
    """Evaluations use smaller batches than training.

    ## What it looks at
    The rule compares the number of examples that pass through the model together on one device in evaluations and in training.
    For evaluations, the number of examples is the batch size of the data loader or of a hyperparameter; for training, it is the
    batch size divided by the number of devices and the number of accumulated micro-batches. A batch that contains the whole
    validation set is large enough.

    ## Why it matters
    Evaluations keep no activations for a backward pass, so any batch size that fits in training also fits in evaluations.
    Smaller batches only slow evaluations down, and slow evaluations tempt users to evaluate rarely or on less data.

    ## What to do
    Evaluate with batches at least as large as in training. Average over examples, not over batches; otherwise the examples of
    the last batch, which may be smaller, get more weight than the others.

    ## How sure
    Both batch sizes are logged facts, so no finding is due to chance. Small batches only cost time, so the finding is a note.
    """

    playbook = "Setting up periodic evaluations"
    goal = "pipeline"

    time: Share = 1 / 3
    """Maximum share of the training time that evaluations may take; above it, the advice is also to evaluate less often. Our
    choice."""

    def check(self, study: Study) -> Iterator[Finding]:
        sized = [
            t for t in study.trials if not math.isnan(batches.eval_batch_size_per_rank(t) + batches.batch_size_per_rank(t))
        ]
        if not sized:
            raise MissingData(
                "no trial logged the batch sizes of both training and evaluations; pass the validation loader to the hook, or set "
                "the tags advisor.batch_size and advisor.eval_batch_size",
                needs="facts",
            )
        with_small_batches = [t for t in sized if _is_eval_batch_small(t)]
        if with_small_batches:
            yield self._build_finding(study, with_small_batches, len(sized))

    def _build_finding(self, study: Study, trials: list[Trial], logged_count: int) -> Finding:
        train_sizes = [batches.batch_size_per_rank(t) for t in trials]
        eval_text = count_range_text([batches.eval_batch_size_per_rank(t) for t in trials])
        train_text = count_range_text(train_sizes)
        min_size, share = math.ceil(max(train_sizes)), timing.evaluation_time_share(study)
        is_slow = share > self.time
        action = "Evaluate with batches of at least {n} examples per device{option}.{rarely}"
        option = say(": {option}", option=Code(f"{_EVAL_OPTION} {min_size}")) if _TRAIN_BATCH in trials[0].params else ""
        text = (
            "In {n} of {known} trials, evaluations use batches of {evaluations} examples per device; training uses batches "
            "of {training}.{time}"
        )
        time = say(" Evaluations take {share} of the training time.", share=Percent(share)) if is_slow else ""
        return self.finding(
            say(text, n=len(trials), known=logged_count, evaluations=eval_text, training=train_text, time=time),
            action=say(action, n=min_size, option=option, rarely=" Evaluate less often, too." if is_slow else ""),
            severity="note",
            confidence=1.0,
            subject="eval_batch_size",
            trials=trials,
            evidence=table(
                ("trials that logged both batch sizes", logged_count),
                ("examples per device in an evaluation batch", eval_text),
                ("examples per device in a training batch", train_text),
                ("devices", count_range_text([ranks.number_of_ranks(t) for t in trials])),
            ),
        )


def _is_eval_batch_small(trial: Trial) -> bool:
    eval_batch = batches.eval_batch_size_per_rank(trial)
    validation_set = trial.fact("n_valid") / ranks.number_of_ranks(trial)
    return eval_batch < math.floor(batches.batch_size_per_rank(trial)) and not eval_batch >= validation_set

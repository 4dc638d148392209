from __future__ import annotations

from collections.abc import Iterator

from advisor.computed.steps import schedules
from advisor.computed.steps.schedules import schedules_of_good_trials
from advisor.engine.rule import Relation, RuleOnGoodTrials
from advisor.model.change import SetSchedule
from advisor.model.evidence import curve_plot, table
from advisor.model.finding import Finding, MissingData
from advisor.model.message import join_items, say
from advisor.model.study import Study


class ScheduleConstant(RuleOnGoodTrials):
    """The learning rate stays constant to the end of training, in every trial.

    ## What it looks at
    The rule examines the logged learning rate or, without it, the logged schedule of the five best trials that achieved at
    least half of the best trial's improvement during training. The rate is constant if it stays within 1 % of its peak after
    the peak. Two kinds of trials are left out: those cut short before a possible decay, and those with an optimizer that needs
    no schedule. The rule does not fire if any trial of the study decays its learning rate, nor in a first round whose study
    file asks for a constant rate.

    ## Why it matters
    Different learning rates are best at different times of training, and some decay is better than none. A constant rate also
    keeps the last evaluations noisy, which makes trials hard to compare.

    ## What to do
    Decay the learning rate to zero, linearly or by a cosine, over the whole training, and tune the base rate with it. Before
    you tune the decay, make training stable and settle the search space and the number of steps.

    ## How sure
    A constant learning rate is a logged fact. The data do not show if the study is ready for tuning a decay, so the finding is
    only a note in the first round. Confidence is 0.75 in the first round and 0.9 later, times the share of the examined trials
    with a constant rate.
    """

    playbook = "Which learning rate decay should I use as a default?"
    goal = "efficiency"
    needs_learning = True
    explains = Relation(
        rules=("curve-step-variance",), because="A learning rate that never decays keeps the weights moving until the end."
    )

    def check(self, study: Study) -> Iterator[Finding]:
        good = schedules_of_good_trials(study, self.reach, self.best)
        complete = [s for s in good if s.logged_kind == "constant" or not study.cut_short(s.trial)]
        judged_schedules = [s for s in complete if s.is_constant is not None]
        if not judged_schedules:
            reason = schedules.reason_schedule_unknown(study, [s.trial for s in good])
            cut_text = ", and the best trials were cut short" if good and not complete else f": {reason}" if reason else ""
            raise MissingData(
                f"the schedule of the learning rate is unknown{cut_text}; log the rate at every step, as train/learning_rate (the "
                "advisor's training hook does)",
                needs="learning_rate",
            )
        constant = [s for s in judged_schedules if s.is_constant and not schedules.needs_no_schedule(s.trial)]
        if len(constant) < len(judged_schedules):
            return
        kind = (study.spec.schedule or {}).get("kind")
        if study.spec.round == 1 and kind is not None and schedules.parse_schedule_kind(str(kind)) == "constant":
            raise MissingData("the study file asks for a constant learning rate, which is your choice", needs="design")
        if any(schedules.read_schedule(study, t).is_constant is False for t in study.trials if study.ended[t.index]):
            return
        is_later_round, trials = study.spec.round > 1, [s.trial for s in constant]
        metric = study.signals.get("learning_rate")
        curves = () if metric is None else (curve_plot(metric, "The learning rate never falls.", trials),)
        table_rows = (
            ("best trials judged", len(judged_schedules)),
            ("logged schedules", join_items(sorted({s.logged_kind or "none" for s in judged_schedules}))),
            ("round of the study", study.spec.round),
        )
        which_trials = say("all {n} best trials", n=len(trials)) if len(trials) > 1 else "the best trial"
        text = "The learning rate stays constant from its peak to the last step in {which}, and no trial decays it."
        yield self.finding(
            say(text, which=which_trials),
            action="Decay the learning rate to zero over the training, linearly or by a cosine, and tune the base rate with it.",
            severity="warning" if is_later_round else "note",
            confidence=(0.9 if is_later_round else 0.75) * len(constant) / len(complete),
            subject=metric,
            trials=trials,
            evidence=(*curves, table(*table_rows)),
            changes=(SetSchedule(schedule={"kind": "cosine"}, why="The learning rate was constant in every trial so far."),),
        )

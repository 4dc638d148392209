from __future__ import annotations

from collections.abc import Iterator, Sequence

from advisor.computed.steps import schedules
from advisor.engine.rule import Relation, Rule, Share
from advisor.model import placeholders
from advisor.model.change import SetSchedule
from advisor.model.evidence import curve_plot, table
from advisor.model.finding import Finding, MissingData
from advisor.model.message import Code, join_items, list_message, say
from advisor.model.space import words_of_name
from advisor.model.study import Study

_DECAYING_SCHEDULES = ("cosine", "linear", "polynomial", "exponential")
"""Kinds of schedules in which the learning rate starts to fall directly after the warmup."""


class ScheduleIgnored(Rule):
    """Trials keep the learning rate constant although the study file asks for a decay, or decay it although it asks for none.

    ## What it looks at
    The rule compares the schedule in the study file with the learning rates that trials logged if they trained to their planned
    end. The learning rate counts as constant if it stays within 1 % of its peak after it has reached the peak. If no rates were
    logged, the rule uses the schedule that the training recorded. Schedules that keep the rate constant for long (in stages, on
    plateaus, or before a final phase) are not compared.

    ## Why it matters
    The usual cause is a command that does not pass the schedule, so the training uses its default. The best learning rate
    depends on the schedule: without a decay, it is lower. The study therefore tunes a learning rate for a schedule that was not
    wanted.

    ## What to do
    Pass the schedule to the training in the command of `advisor run`, or let the training read ADVISOR_SCHEDULE. The next study
    sets the schedule together with its other changes.

    ## How sure
    The logged learning rates are facts, not estimates. Confidence is the share of the compared trials that do not follow the
    study file, times 0.99 if rates were logged and 0.95 otherwise. The rule does not fire if at most half of the compared
    trials deviate from the study file. We measured the rule on tiny models whose training ignores the study file, follows it,
    or decays by another form, with restarts, on plateaus or at the end only (`lm_rules.py`, six seeds of 401 to 410, not used
    in development).
    """

    playbook = "Which learning rate decay should I use as a default?"
    goal = "pipeline"
    explains = Relation(
        rules=("schedule-constant", "step-position"), because="The study file asks for a schedule that the trials did not have."
    )

    ignored: Share = 0.5
    """Maximum share of trials whose schedule may differ from the study file without a finding. Our choice."""

    def check(self, study: Study) -> Iterator[Finding]:
        requested_kind = schedules.parse_schedule_kind(str((study.spec.schedule or {}).get("kind", "other")))
        if requested_kind != "constant" and requested_kind not in _DECAYING_SCHEDULES:
            raise MissingData("the study file asks for no schedule that the logged learning rates can be compared with")
        if any({"schedule", "scheduler"} & set(words_of_name(name)) for name in study.searched):
            raise MissingData("the study searches the schedule, so trials may differ from the schedule of the study file")
        complete = [t for t in study.trials if study.ended[t.index] and not study.cut_short(t)]
        complete = [t for t in complete if schedules.is_schedule_known(study, t)]
        known_schedules = [s for t in complete if (s := schedules.read_schedule(study, t)).is_constant is not None]
        if not known_schedules:
            raise MissingData(
                "no trial that trained to its end logged its learning rate; log it at every step, as train/learning_rate (the "
                "advisor's training hook does)",
                needs="learning_rate",
            )
        wrong_schedules = [s for s in known_schedules if s.is_constant is (requested_kind != "constant")]
        if len(wrong_schedules) > self.ignored * len(known_schedules):
            yield self._build_finding(study, wrong_schedules, len(known_schedules))

    def _build_finding(self, study: Study, wrong: Sequence[schedules.Schedule], judged: int) -> Finding:
        requested, trials = dict(study.spec.schedule or {}), [s.trial for s in wrong]
        names = (n for n in placeholders.placeholder_values(study.spec) if n.partition(".")[0] == placeholders.SCHEDULE)
        logged = all(len(s.rates) >= schedules.MIN_LOGGED_RATES for s in wrong)
        figures = table(
            ("trials judged", judged), ("logged schedules", join_items(sorted({s.logged_kind or "none" for s in wrong})))
        )
        metric, is_constant = study.signals.get("learning_rate"), wrong[0].is_constant
        caption = "The learning rate never falls." if is_constant else "The learning rate falls."
        text = "The study file asks for the learning-rate schedule {schedule}, but {n} of {judged} trials {kept} the rate."
        schedule = join_items([str(v) if n == "kind" else f"{n} {v}" for n, v in requested.items()])
        action = "Pass the study's schedule to the training in the command: {named}."
        why = "The study file asked for this schedule, but the trials did not have it."
        return self.finding(
            say(text, schedule=schedule, n=len(wrong), judged=judged, kept="do not decay" if is_constant else "decay"),
            action=say(action, named=list_message(Code(f"{{{n}}}") for n in names)),
            severity="critical",
            confidence=(0.99 if logged else 0.95) * len(wrong) / judged,
            subject=metric,
            trials=trials,
            evidence=(curve_plot(metric, caption, trials[:5]), figures) if metric else figures,
            changes=(SetSchedule(schedule=requested, why=why),),
        )

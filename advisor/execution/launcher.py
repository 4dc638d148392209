"""Trains the jobs of a study until all have ended, and stops cleanly when it is asked to."""

from __future__ import annotations

from advisor.execution.engines.local import not_written
from advisor.execution.job_env import check, make_private
from advisor.execution.ledger import Ledger
from advisor.execution.options import Launch, Summary, Tell
from advisor.execution.running_jobs import Work
from advisor.execution.stopping import Asked


def launch(plan: Launch, ledger: Ledger, tell: Tell) -> Summary:
    """Train all jobs that have not ended yet. Raises KeyboardInterrupt after a clean stop; AdvisorError where going on is no use.

    What has ended stays as it is, so calling it again goes on where it was left, also after a `kill -9`.
    """
    check(plan.spec, plan.words)
    try:
        make_private(plan.folder)
    except OSError as error:
        raise not_written(plan.folder, error) from None
    summary = Summary(plan.source.total, maximize=plan.spec.objective.direction == "maximize")
    work = Work(plan, ledger, summary, tell)
    asked = Asked()
    with asked.listening():
        try:
            work.recall()
            work.run(asked)
        finally:
            work.stop(asked)
    if asked.times:
        raise KeyboardInterrupt
    return summary

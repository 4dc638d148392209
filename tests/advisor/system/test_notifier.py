"""Messages to a command of the user, which runs for real."""

import json
import sys

import pytest
from launches import wait_until

from advisor.model.errors import AdvisorError
from advisor.system.notifier import Notification, Notifier, parse_command, to_json_message

COMMAND = """
import os, sys, time
text = sys.stdin.read()
with open(sys.argv[1] + " times", "a") as file:
    file.write(f"{time.monotonic()}\\n")
with open(sys.argv[1], "a") as file:
    file.write(text)
if sys.argv[2] == "hang":
    time.sleep(60)
sys.exit(int(sys.argv[2]))
"""
STUCK = Notification("stuck", "s", "trial-3", 40, "trial-3 is still where it began.")


@pytest.fixture
def send(tmp_path):
    """Return a function that makes a notifier, with the messages that its command received and the lines that it said."""
    made = []

    def make(ending="0", **more):
        out, said = tmp_path / "received", []
        notifier = Notifier([sys.executable, "-c", COMMAND, str(out), ending], said.append, **more)
        made.append(notifier)
        return notifier, lambda: [json.loads(t) for t in out.read_text().splitlines()] if out.exists() else [], said

    yield make
    for notifier in made:
        notifier.close()


def test_a_message_is_one_json_object_on_standard_input(send):
    notifier, received, said = send()
    notifier.send(STUCK)
    wait_until(received)
    notifier.close()
    assert received() == [
        {"event": "stuck", "study": "s", "trial": "trial-3", "step": 40, "message": "trial-3 is still where it began."}
    ]
    assert said == []


def test_an_event_of_a_trial_is_sent_once_and_later_messages_are_bundled(send):
    notifier, received, _ = send(interval_s=60.0)
    notifier.send(STUCK)
    wait_until(received)
    for trial, event in (("trial-3", "stuck"), ("trial-4", "stuck"), ("trial-3", "diverging"), ("trial-4", "stuck")):
        notifier.send(Notification(event, "s", trial, 50, f"{trial} {event}"))
    notifier.close()
    first, bundle = received()
    assert first["trial"] == "trial-3"
    assert bundle["message"] == "trial-4 stuck\ntrial-3 diverging"
    assert [(n["event"], n["trial"]) for n in bundle["bundled"]] == [("stuck", "trial-4"), ("diverging", "trial-3")]


def test_messages_wait_for_the_interval(send, tmp_path):
    notifier, received, _ = send(interval_s=1.0)
    for trial in range(3):
        notifier.send(Notification("failed", "s", f"trial-{trial}", None, "x"))
        wait_until(received)
    wait_until(lambda: sum(len(m.get("bundled", [m])) for m in received()) == 3)
    first, second, *_ = map(float, (tmp_path / "received times").read_text().split())
    assert second - first >= 1.0


@pytest.mark.parametrize(
    ("ending", "timeout_s", "reason"), [("3", 60.0, "exit status 3"), ("hang", 0.6, "the command took longer than 1 s")]
)
def test_a_failure_of_the_command_is_one_line_and_shows_no_secret(send, ending, timeout_s, reason):
    notifier, received, said = send(ending, timeout_s=timeout_s, interval_s=0.0)
    notifier.send(STUCK)
    wait_until(lambda: said)
    assert said == [f"The command of --notify failed: {reason}."]
    notifier.send(Notification("ended", "s", None, None, "all have ended"))  # it goes on
    wait_until(lambda: len(said) == 2)
    if ending == "3":
        assert len(received()) == 2


def test_a_message_holds_no_secret(send):
    notifier, received, _ = send()
    notifier.send(Notification("failed", "s", "trial-0", None, "cannot open postgresql://me:s3cret-word@host/db"))
    wait_until(received)
    assert "s3cret-word" not in json.dumps(received())


def test_a_large_bundle_is_shortened():
    message = to_json_message([Notification("failed", "s", f"trial-{i}", None, "x") for i in range(50)])
    assert len(message["bundled"]) == 20
    assert message["message"].splitlines()[-1] == "and 30 more"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "needs a command"),
        ("curl 'https://x", "quotes of the command do not match"),
        ("no-such-program-here --to me", "no program 'no-such-program-here'"),
    ],
)
def test_a_command_that_cannot_run_is_refused(text, reason):
    with pytest.raises(AdvisorError, match=reason):
        parse_command(text)


def test_a_command_is_words_and_no_shell():
    assert parse_command(f"'{sys.executable}' -c 'print(1); exit' $HOME") == [sys.executable, "-c", "print(1); exit", "$HOME"]

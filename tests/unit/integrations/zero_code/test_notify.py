"""notify=: a webhook or a command hears of an incident; training does not wait for it and never fails by it."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import steadygrad as sg
from steadygrad.engine.record.notify import Notifier, sentence
from steadygrad.records import Action, Cause, Decision, Diagnosis, Incident, Origin


def incident(number: int = 1) -> Incident:
    return Incident(
        number=number,
        first_step=41,
        last_step=42,
        symptom="nan_loss",
        headline="the loss is nan",
        decision=Decision(step=42, actions=(Action.SKIP,)),
        diagnosis=Diagnosis(
            symptom="nan_loss",
            phase="forward",
            cause=Cause(code="DX203", slug="log_zero"),
            origin=Origin(phase="forward", op="log", source="train.py:7"),
            confidence=float("nan"),
        ),
    )


class Hook:
    """A webhook on this machine. `gate` holds answers back until it is set."""

    def __init__(self, status: int = 200) -> None:
        self.received: list[dict[str, Any]] = []
        self.gate = threading.Event()
        self.gate.set()
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                hook.gate.wait(60)
                hook.received.append(json.loads(body))
                self.send_response(status)
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook"

    def close(self) -> None:
        self.gate.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def hook() -> Iterator[Hook]:
    made = Hook()
    yield made
    made.close()


def test_a_webhook_gets_the_incident_as_json(hook: Hook) -> None:
    notifier = Notifier(hook.url, run="runs/x")
    notifier(incident())
    notifier.close(60)
    (got,) = hook.received
    assert got["run"] == "runs/x"
    assert got["incident"]["symptom"] == "nan_loss"
    assert got["incident"]["diagnosis"]["confidence"] == "nan"  # JSON has no NaN
    assert got["text"].startswith("steadygrad: incident 1 at steps 41 to 42: the loss is nan (skip).")
    assert (notifier.delivered, notifier.failed) == (1, 0)


def test_handing_over_does_not_wait_for_a_slow_receiver(hook: Hook) -> None:
    hook.gate.clear()
    notifier = Notifier(hook.url)
    for number in range(3):
        notifier(incident(number))
    assert hook.received == []  # all three calls came back while the receiver had not answered the first
    hook.gate.set()
    assert notifier.flush(60)
    assert [got["incident"]["number"] for got in hook.received] == [0, 1, 2]
    notifier.close()


def test_a_failing_receiver_is_told_once() -> None:
    refusing = Hook(status=500)
    told: list[str] = []
    notifier = Notifier(refusing.url, tell=told.append)
    for number in range(3):
        notifier(incident(number))
    assert notifier.flush(60)
    refusing.close()
    notifier.close()
    assert notifier.failed == 3
    assert len(told) == 1
    assert "could not be delivered" in told[0]
    assert "500" in told[0]


def test_a_command_gets_the_incident_on_standard_input(tmp_path: Path) -> None:
    target = tmp_path / "got it.json"
    program = "import sys, pathlib; pathlib.Path(sys.argv[1]).write_text(sys.stdin.read())"
    notifier = Notifier([sys.executable, "-c", program, str(target)], timeout_s=60)
    notifier(incident())
    notifier.close(60)
    assert json.loads(target.read_text())["incident"]["number"] == 1


def test_a_command_is_run_without_a_shell(tmp_path: Path) -> None:
    target = tmp_path / "made-by-a-shell"
    notifier = Notifier(f"{sys.executable} -c pass ; touch {target}", timeout_s=60)
    notifier(incident())
    notifier.close(60)
    assert not target.exists()


def test_a_command_that_fails_says_its_last_line() -> None:
    told: list[str] = []
    program = "import sys; print('no such channel', file=sys.stderr); sys.exit(3)"
    notifier = Notifier([sys.executable, "-c", program], tell=told.append, timeout_s=60)
    notifier(incident())
    notifier.close(60)
    assert "exited with 3: no such channel" in told[0]


def test_a_command_that_is_not_there_does_not_raise() -> None:
    told: list[str] = []
    notifier = Notifier("steadygrad-no-such-command --now", tell=told.append)
    notifier(incident())
    notifier.close(60)
    assert "FileNotFoundError" in told[0]


def test_a_function_gets_the_payload() -> None:
    got: list[dict[str, Any]] = []
    notifier = Notifier(got.append, run="r")
    notifier(incident())
    notifier.close(60)
    assert got[0]["incident"]["first_step"] == 41


@pytest.mark.parametrize("target", ["", [], 3, "ftp://example.org/x"])
def test_what_cannot_be_notified_gets_one_sentence(target: Any) -> None:
    with pytest.raises(sg.UsageError, match="notify"):
        Notifier(target)


def test_the_sentence_names_cause_place_and_next_command() -> None:
    assert sentence(incident(), "runs/x").endswith("Cause: log_zero, train.py:7. See: steady incidents runs/x")

"""Telling someone about an incident: a webhook, a command or a tracker, from its own thread.

    notifier = Notifier("https://hooks.example.org/steady")     # POSTs the incident as JSON
    notifier = Notifier("mail -s incident me@example.org")      # runs the command with the JSON on standard input
    notifier = Notifier(None)                                   # only the trackers that have a run open
    notifier(incident)                                          # returns at once

An experiment tracker that has a run open in this process is told by its own alerts, whatever the target is (see
`trackers`). A message that cannot be delivered is told once, counted, and never stops or slows training.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import queue
import shlex
import subprocess
import threading
import time
import urllib.request
import weakref
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

from ... import __version__
from ...records import Action, Incident, to_plain
from ...records.errors import UsageError
from .tracker_alerts import open_trackers

logger = logging.getLogger("steadygrad")
_TIMEOUT_S = 10.0
_MAX_WAITING = 64
Deliver = Callable[[bytes], None]
Errand = tuple[str, Callable[[], object]]
"""One delivery that is waiting: to whom, and what to call."""


class Notifier:
    """Delivers incidents in the background, in order. `notifier(incident)` never blocks and never raises.

    Args:
        target: an http(s) URL that gets a POST; a command, as one string or a list of words, that gets the JSON on
            standard input and is run without a shell; or a function that gets the payload as a dictionary. With None
            only trackers that have a run open are told, with False no one is.
        run: what the payload says of the run, for example its directory.
        tell: called with one sentence when a delivery fails for the first time; the log if not given.
    """

    def __init__(
        self,
        target: str | Sequence[str] | Callable[[dict[str, Any]], object] | bool | None,
        *,
        run: str = "",
        tell: Callable[[str], object] | None = None,
        timeout_s: float = _TIMEOUT_S,
    ) -> None:
        self._deliver = None if target is None or target is False else _delivery(target, timeout_s)
        self._tells_trackers = target is not False
        self._run = run
        self._tell = tell or logger.warning
        self._waiting: queue.Queue[Errand | None] = queue.Queue(_MAX_WAITING)
        self._idle = threading.Condition()
        self._open = 0
        self._thread: threading.Thread | None = None
        self._process = os.getpid()
        self._told: set[str] = set()
        self.delivered = self.failed = 0
        self._finalizer = weakref.finalize(self, _stop, self._waiting)

    def __call__(self, incident: Incident) -> None:
        """Hand one incident over. Encodes on this thread (microseconds), sends on another."""
        if os.getpid() != self._process:
            return  # a forked child: the thread is the parent's
        for errand in self._errands(incident):
            self._hand_over(errand)

    def _errands(self, incident: Incident) -> list[Errand]:
        """Who is to be told, and how. Asks the trackers on this thread, where their open run is known."""
        errands: list[Errand] = []
        if (deliver := self._deliver) is not None:
            try:
                payload = json.dumps(self.payload(incident), allow_nan=False).encode()
            except (TypeError, ValueError) as error:
                self._fail("notify", f"it could not be encoded: {error}")
            else:
                errands.append(("notify", lambda: deliver(payload)))
        if self._tells_trackers:
            title, text = f"steadygrad: {incident.symptom}", sentence(incident, self._run)
            halted = incident.decision is not None and Action.HALT in incident.decision.actions
            for name, alert in open_trackers().items():
                errands.append((name, functools.partial(alert, title, text, incident.number, halted)))
        return errands

    def _hand_over(self, errand: Errand) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="steadygrad-notify", daemon=True)
            self._thread.start()
        with self._idle:
            self._open += 1
        try:
            self._waiting.put_nowait(errand)
        except queue.Full:
            self._done(errand[0], f"{_MAX_WAITING} messages are waiting already")

    def payload(self, incident: Incident) -> dict[str, Any]:
        """What is sent: the incident as in incident.json, and a `text` that chat services show."""
        return {"text": sentence(incident, self._run), "run": self._run, "incident": to_plain(incident)}

    def flush(self, timeout_s: float = _TIMEOUT_S) -> bool:
        """Waits until everything handed over is delivered or has failed; False if that took too long."""
        deadline = time.monotonic() + timeout_s
        with self._idle:
            return self._idle.wait_for(lambda: self._open == 0, timeout=max(0.0, deadline - time.monotonic()))

    def close(self, timeout_s: float = _TIMEOUT_S) -> None:
        """Waits for what is under way, at most so long, and lets the thread go."""
        if os.getpid() == self._process:
            self.flush(timeout_s)
        self._finalizer()

    def _work(self) -> None:
        while (errand := self._waiting.get()) is not None:
            receiver, deliver = errand
            try:
                deliver()
            except Exception as error:
                # Whatever a network, a command, a tracker or the user's function does, the loop goes on.
                self._done(receiver, f"{type(error).__name__}: {error}")
            else:
                self._done(receiver, None)

    def _done(self, receiver: str, failure: str | None) -> None:
        if failure is None:
            self.delivered += 1
        else:
            self._fail(receiver, failure)
        with self._idle:
            self._open -= 1
            self._idle.notify_all()

    def _fail(self, receiver: str, why: str) -> None:
        self.failed += 1
        if receiver not in self._told:
            self._told.add(receiver)
            whose = "a notification" if receiver == "notify" else f"an alert of {receiver}"
            self._tell(
                f"{whose} could not be delivered ({why}). The incident is in the journal; "
                "further failures are only counted."
            )


def sentence(incident: Incident, run: str = "") -> str:
    """One line an outsider understands: what happened, in which step, why, and the command that shows more."""
    when = f"step {incident.first_step}"
    if incident.last_step != incident.first_step:
        when = f"steps {incident.first_step} to {incident.last_step}"
    done = " + ".join(incident.decision.actions) if incident.decision is not None else "recorded"
    text = f"steadygrad: incident {incident.number} at {when}: {incident.headline or incident.symptom} ({done})."
    diagnosis = incident.diagnosis
    if diagnosis is not None and diagnosis.cause is not None:
        where = diagnosis.origin.source if diagnosis.origin is not None and diagnosis.origin.source else diagnosis.phase
        text += f" Cause: {diagnosis.cause.slug}, {where}."
    return text + (f" See: steady incidents {run}" if run else "")


def _delivery(target: Any, timeout_s: float) -> Deliver:
    if callable(target):
        return lambda payload: target(json.loads(payload)) and None
    if isinstance(target, str) and urlsplit(target).scheme.lower() in ("http", "https"):
        return lambda payload: _post(target, payload, timeout_s)
    words = shlex.split(target) if isinstance(target, str) else list(target) if isinstance(target, list | tuple) else []
    if not words or not all(isinstance(word, str) for word in words):
        raise UsageError(
            f"notify must be an http(s) URL, a command or a function, got {target!r}. "
            "For example notify='https://hooks.example.org/...' or notify='notify-send steadygrad'."
        )
    if "://" in words[0]:
        raise UsageError(f"notify can POST to http and https addresses only, not to {words[0]!r}.")
    return lambda payload: _run_command(words, payload, timeout_s)


def _post(url: str, payload: bytes, timeout_s: float) -> None:
    headers = {"Content-Type": "application/json", "User-Agent": f"steadygrad/{__version__}"}
    request = urllib.request.Request(url, data=payload, headers=headers, method="POST")
    with urllib.request.urlopen(request, timeout=timeout_s) as answer:
        answer.read(1024)


def _run_command(words: Sequence[str], payload: bytes, timeout_s: float) -> None:
    done = subprocess.run(
        words, input=payload, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=timeout_s, check=False
    )
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise RuntimeError(f"{words[0]} exited with {done.returncode}{': ' + said[-1][:200] if said else ''}")


def _stop(waiting: queue.Queue[Errand | None]) -> None:
    try:
        waiting.put_nowait(None)
    except queue.Full:
        pass  # a daemon thread: it ends with the process

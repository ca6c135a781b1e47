"""Which signals to pass on to the program: those that were sent to us alone. No torch.

The program is in our process group, so a Ctrl-C and a signal to the group reach it without us, and a second one would
interrupt its clean-up. What a signal was sent to cannot be seen from the signal. So a small process waits in the same
group with all signals blocked: one that is pending there too was sent to all of us.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from typing import Self

_NAMES = ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGCONT", "SIGQUIT", "SIGINT")
_SETTLE_S = 0.1
"""So long after a signal we ask: who sends it to every process in turn needs a moment to reach the last one."""
_ANSWER_S = 5.0


class SignalGroupProbe:
    """A process in our group that does nothing but know which signals the group was sent. Ends when we do."""

    def __init__(self) -> None:
        ask_end, self._ask = os.pipe()
        self._answers, answer_end = os.pipe()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        self._process = os.fork()
        if self._process == 0:
            try:
                os.close(self._ask)
                os.close(self._answers)
                _serve(ask_end, answer_end)
            finally:
                os._exit(0)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(ask_end)
        os.close(answer_end)

    def has(self, number: int) -> bool:
        """Whether the group was sent this signal since the last question. False where the probe is gone."""
        with contextlib.suppress(OSError):
            os.write(self._ask, bytes([number]))
            if select.select([self._answers], [], [], _ANSWER_S)[0]:
                return os.read(self._answers, 1) == b"y"
        return False

    def close(self) -> None:
        os.close(self._ask)
        os.close(self._answers)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._process, 0)


def _serve(questions: int, answers: int) -> None:
    """The life of the probe: it holds no stream of the program open and ends with the pipe."""
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    while question := os.read(questions, 1):
        pending = question[0] in signal.sigpending()
        if pending:
            signal.sigwait([question[0]])  # taken off the list, at once because it is pending
        os.write(answers, b"y" if pending else b"n")


class SignalRelay:
    """Signals that arrive here while a program runs, in the order of their arrival, read from a pipe.

    Handlers are in place before the program starts, so that none is lost in between.
    """

    def __init__(self) -> None:
        self._probe = SignalGroupProbe()
        self._arrivals, self._arrived = os.pipe()
        for end in (self._arrivals, self._arrived):
            os.set_blocking(end, False)
        self._wakeup = signal.set_wakeup_fd(self._arrived, warn_on_full_buffer=False)
        self._before = {
            number: signal.signal(number, lambda *_: None)
            for number in (*_passed_on(), signal.SIGCHLD)
            if signal.getsignal(number) not in (signal.SIG_IGN, None)
        }

    def wait(self, child: subprocess.Popen[bytes]) -> int:
        """Wait for the program to end, passing signals on. Returns how it ended."""
        while child.poll() is None:
            select.select([self._arrivals], [], [], 1.0)
            arrived = self._read() - {signal.SIGCHLD}
            if arrived and child.poll() is None:
                time.sleep(_SETTLE_S)
                for number in sorted(arrived | self._read() - {signal.SIGCHLD}):
                    if not self._probe.has(number):
                        child.send_signal(number)
        code: int = child.returncode
        return code

    def _read(self) -> set[int]:
        with contextlib.suppress(BlockingIOError):
            return set(os.read(self._arrivals, 512))
        return set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup)
        os.close(self._arrivals)
        os.close(self._arrived)
        self._probe.close()


def _passed_on() -> Iterator[int]:
    for name in _NAMES:
        if (number := getattr(signal, name, None)) is not None:
            yield number

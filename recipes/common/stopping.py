"""Ctrl-C for recipes that a transformers Trainer drives."""

from __future__ import annotations

import signal
import threading
from typing import Any

from transformers import TrainerCallback


class StopAtCtrlC(TrainerCallback):  # type: ignore[misc]
    """The first Ctrl-C ends training after the step under way, with a checkpoint; the second one at once."""

    def __init__(self) -> None:
        self.asked = False
        self._former: Any = None

    def _ask(self, number: int, frame: Any) -> None:
        self.asked = True
        print("\nStopping after this step; a second Ctrl-C stops at once.")
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if threading.current_thread() is threading.main_thread():
            self._former = signal.signal(signal.SIGINT, self._ask)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.asked:
            control.should_save = control.should_training_stop = True

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._former is not None:
            signal.signal(signal.SIGINT, self._former)

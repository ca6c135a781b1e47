"""The tools under test: steadygrad and the two best-known others. Each takes a fresh case and gives an answer."""

from __future__ import annotations

import contextlib
import io
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from . import protocol
from .through_guard import answer_of, guard
from .truth import Answer


def steadygrad(case: Any) -> Answer:
    """The loop watched and the first trouble diagnosed in full."""
    from .patients import run_case

    sighting = run_case(case)
    if sighting.suspicion is None:
        return Answer()
    suspicion, diagnosis = sighting.suspicion, sighting.diagnosis
    assert diagnosis is not None
    return answer_of(diagnosis, suspicion.step)


def detect_anomaly(case: Any) -> Answer:
    """torch.autograd.detect_anomaly around forward and backward of the plain loop."""
    now = {"step": -1}

    @contextlib.contextmanager
    def wrap(step: int, phase: str) -> Iterator[None]:
        now["step"] = step
        if phase in ("forward", "backward"):
            with torch.autograd.detect_anomaly(check_nan=True):
                yield
        else:
            yield

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            protocol.train(case, wrap=wrap)
        except RuntimeError as error:
            found = re.search(r"Function '(\w+?)Backward\d*' returned nan", str(error))
            if found is None:
                raise
            text = "\n".join(str(warning.message) for warning in said)
            places = re.findall(r'File "([^"]+)", line (\d+)', text)
            return Answer(
                alarm_step=now["step"],
                phase="backward",
                op=re.sub(r"(?<!^)(?=[A-Z])", "_", found.group(1)).lower(),
                lines=[f"{file}:{line}" for file, line in reversed(places)],
            )
    return Answer()


def debug_underflow_overflow(case: Any) -> Answer:
    """transformers' DebugUnderflowOverflow on the plain loop."""
    from transformers.debug_utils import DebugUnderflowOverflow

    now = {"step": -1}

    @contextlib.contextmanager
    def wrap(step: int, _phase: str) -> Iterator[None]:
        now["step"] = step
        yield

    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        DebugUnderflowOverflow(case.model)
        try:
            protocol.train(case, wrap=wrap)
        except ValueError as error:
            if "DebugUnderflowOverflow" not in str(error) and "inf/nan" not in str(error):
                raise
            frames = re.findall(r"^\s+(\S+) (\w+)\n", output.getvalue(), flags=re.MULTILINE)
            return Answer(alarm_step=now["step"], phase="forward", module=frames[-1][0] if frames else None)
    return Answer()


TOOLS: dict[str, Callable[[Any], Answer]] = {
    "steadygrad": steadygrad,
    "detect_anomaly": detect_anomaly,
    "debug_underflow_overflow": debug_underflow_overflow,
    "guard": guard,
}
SIDE_BY_SIDE = ("steadygrad", "detect_anomaly", "debug_underflow_overflow")
"""What is compared when nothing else is asked for; `guard` is steadygrad again, through its front door."""

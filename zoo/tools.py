"""The tools under test: steadygrad through its entry points, and the two best-known others."""

from __future__ import annotations

import contextlib
import io
import re
import warnings
from collections.abc import Callable, Iterator

import torch

from . import protocol
from .entry_points import ENTRY_POINTS, UPPER_BOUND
from .truth import Answer, Subject


def detect_anomaly(subject: Subject) -> Answer:
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
            protocol.train(subject.case, wrap=wrap)
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


def debug_underflow_overflow(subject: Subject) -> Answer:
    """transformers' DebugUnderflowOverflow on the plain loop."""
    from transformers.debug_utils import DebugUnderflowOverflow

    now = {"step": -1}

    @contextlib.contextmanager
    def wrap(step: int, _phase: str) -> Iterator[None]:
        now["step"] = step
        yield

    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        DebugUnderflowOverflow(subject.case.model)
        try:
            protocol.train(subject.case, wrap=wrap)
        except ValueError as error:
            if "DebugUnderflowOverflow" not in str(error) and "inf/nan" not in str(error):
                raise
            frames = re.findall(r"^\s+(\S+) (\w+)\n", output.getvalue(), flags=re.MULTILINE)
            return Answer(alarm_step=now["step"], phase="forward", module=frames[-1][0] if frames else None)
    return Answer()


TOOLS: dict[str, Callable[[Subject], Answer]] = {
    **ENTRY_POINTS,
    **UPPER_BOUND,
    "detect_anomaly": detect_anomaly,
    "debug_underflow_overflow": debug_underflow_overflow,
}
MAY_NOT_DIAGNOSE = frozenset({"attach"})
"""Entry points that may be unable to run a batch again: where none of their answers has a diagnosis, the fields of a
diagnosis are not asked of them."""

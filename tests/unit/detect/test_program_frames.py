"""Where a program is: the line of an instruction is the one that Python shows for it."""

from __future__ import annotations

import sys
from types import FrameType

from steadygrad.detect.loop.program_frames import line_of


def test_the_line_of_an_instruction_is_that_of_the_running_function() -> None:
    seen: list[tuple[FrameType, int, int]] = []

    def note(value: int) -> int:
        frame = sys._getframe(1)
        seen.append((frame, frame.f_lasti, frame.f_lineno))
        return value

    for number in range(2):
        _ = note(number) + note(number)
        _ = [note(each) for each in range(2)]
    assert len(seen) == 8
    assert [line_of(frame, place) for frame, place, _ in seen] == [line for _, _, line in seen]

"""What came into a step bad was made elsewhere; the answer says where the step reads it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Shifted(nn.Module):
    """Reads the batch on one line and its buffer on another."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(3, 1)
        self.register_buffer("centre", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        doubled = x * 2.0
        shifted = doubled - self.centre
        return self.body(shifted).square().mean()


def notes_of(replayable: Any) -> str:
    from steadygrad.diagnosis.diagnose import diagnose

    return "\n".join(diagnose(replayable, depth="origin").notes)


def test_the_line_that_reads_a_bad_entry_of_the_batch_is_told(make_replayable: Any) -> None:
    batches = [torch.rand(4, 3) for _ in range(3)]
    batches[0][2, 1] = torch.nan
    notes = notes_of(make_replayable(Shifted(), lambda m, b: m(b), batches))
    assert "first read by mul" in notes
    assert "doubled = x * 2.0" in notes


def test_the_line_that_reads_a_bad_buffer_is_told(make_replayable: Any) -> None:
    model = Shifted()
    model.centre[1] = torch.nan
    notes = notes_of(make_replayable(model, lambda m, b: m(b), [torch.rand(4, 3) for _ in range(3)]))
    assert "first read by sub" in notes
    assert "shifted = doubled - self.centre" in notes


def test_of_a_value_that_the_step_made_itself_nothing_is_told(make_replayable: Any) -> None:
    batches = [torch.zeros(4, 3) for _ in range(3)]
    loss = lambda m, b: m(b / b.sum())  # noqa: E731
    assert "first read" not in notes_of(make_replayable(Shifted(), loss, batches))

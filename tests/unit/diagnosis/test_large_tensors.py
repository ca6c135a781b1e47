"""Tensors too large to copy: the bad rows and a few others are enough to name the cause."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from steadygrad.diagnosis.locate import op_capture


class Divided(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / x.pow(2).sum(-1, keepdim=True).sqrt()


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.head = nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, x: Tensor, masked: Tensor) -> Tensor:
        scores = (self.query(x) @ x.transpose(1, 2)).unsqueeze(1).expand(-1, 4, -1, -1)
        weights = scores.masked_fill(masked[:, None, None, :], -float("inf")).softmax(-1)
        return self.head((weights @ x.unsqueeze(1)).sum((1, 2)))  # type: ignore[no-any-return]


class Half(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide, self.head = nn.Linear(16, 64, bias=False), nn.Linear(64, 1)
        nn.init.constant_(self.wide.weight, 20.0)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.float16):
            wide = self.wide(x)
        return self.head(wide.float() * 1e-3)  # type: ignore[no-any-return]


def rows_alike(rows: int) -> list[Any]:
    return [{"x": torch.rand(rows, 16)} for _ in range(8)]


def divided() -> tuple[nn.Module, Any, list[Any]]:
    batches = rows_alike(256)
    batches[3]["x"][7] = 0.0
    model = nn.Sequential(nn.Linear(16, 64, bias=False), Divided(), nn.Linear(64, 1))
    return model, lambda m, b: m(b["x"]).square().mean(), batches


def logarithm() -> tuple[nn.Module, Any, list[Any]]:
    batches = [{"x": torch.rand(64, 4, 16), "weight": torch.rand(64, 4) + 0.1} for _ in range(8)]
    batches[3]["weight"][7, 2] = 0.0
    return nn.Linear(16, 64), lambda m, b: (m(b["x"]) * b["weight"].log().unsqueeze(-1)).square().mean(), batches


def masked() -> tuple[nn.Module, Any, list[Any]]:
    batches = [{"x": torch.rand(16, 16, 8), "masked": torch.zeros(16, 16, dtype=torch.bool)} for _ in range(8)]
    batches[3]["masked"][5] = True
    return Attention(), lambda m, b: m(b["x"], b["masked"]).square().mean(), batches


def half() -> tuple[nn.Module, Any, list[Any]]:
    batches = rows_alike(256)
    batches[3]["x"][7] = 400.0
    return Half(), lambda m, b: m(b["x"]).square().mean(), batches


@pytest.mark.parametrize(
    ("made", "op", "cause"),
    [
        (divided, "div", "zero_division"),
        (logarithm, "log", "log_zero"),
        (masked, "softmax", "masked_softmax_row"),
        (half, "mm", "fp16_overflow"),
    ],
)
@pytest.mark.parametrize("most", [1 << 12, 1 << 24])
def test_the_cause_is_named_however_large_the_tensors_are(
    made: Any, op: str, cause: str, most: int, monkeypatch: pytest.MonkeyPatch, run_case: Any, make_case: Any
) -> None:
    monkeypatch.setattr(op_capture, "MAX_ELEMENTS", most)
    monkeypatch.setattr(op_capture, "MAX_ELEMENTS_NEARBY", most // 2)
    torch.manual_seed(0)
    model, loss, batches = made()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    found = run_case(make_case(model, loss, batches, optimizer)).diagnosis
    assert (found.origin.op, found.cause and found.cause.slug) == (op, cause)


def test_of_an_op_that_mixes_rows_nothing_is_taken_for_its_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    captured = op_capture.CapturedOp()
    captured.bad_leading = (True, False)
    out = torch.tensor([[float("nan"), 1.0], [1.0, 1.0]])
    captured._keep_rows("cumsum", torch.ops.aten.cumsum.default, (torch.ones(2, 2), 0), {}, [out], lambda item: item)
    assert captured.output_tensors == ()
    assert captured.args == ()

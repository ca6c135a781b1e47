"""A batch whose entries point at its rows is taken as a whole, and the answer says so; nothing is launched blindly."""

from __future__ import annotations

from itertools import pairwise
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from steadygrad import Guard
from steadygrad.records import Diagnosis


class Conv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin, self.out = nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        hidden = self.lin(x).half()
        total = torch.zeros_like(hidden).index_add_(0, edges[1], hidden[edges[0]])
        out: Tensor = self.out(total.float())
        return out


def graph_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return (model(batch["x"], batch["edges"]) - batch["y"]).pow(2).mean()  # type: ignore[no-any-return]


def graph(step: int, *, loops: bool = False) -> dict[str, Tensor]:
    x, edges = torch.randn(64, 8), torch.randint(0, 64, (2, 4096))
    if step == 5:
        x, edges[1] = x * 3e3, 7
    return {"x": x, "edges": edges, "y": torch.randn(64, 1)}


def diagnosed(model: nn.Module, loss: Any, make: Any, steps: int = 9) -> Diagnosis:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with Guard(model, optimizer, loss) as guard:
        for step in range(steps):
            guard.step(make(step))
    assert guard.summary()["skipped"] == 1
    found = guard.incidents[0].diagnosis
    assert found is not None
    return found


def test_a_graph_is_indivisible_and_its_overflow_is_diagnosed_all_the_same() -> None:
    torch.manual_seed(0)
    found = diagnosed(Conv(), graph_loss, graph)
    assert found.cause is not None
    assert found.cause.slug == "fp16_overflow"
    assert found.rows is None
    assert not found.rows_coupled
    assert any("the batch is indivisible: 'edges' points at its 64 rows" in note for note in found.notes)


def test_edges_that_are_changed_before_they_are_used_still_point_at_the_rows() -> None:
    class WithLoops(Conv):
        def forward(self, x: Tensor, edges: Tensor) -> Tensor:
            own = torch.arange(x.shape[0])
            return super().forward(x, torch.cat([edges.flip(0).contiguous(), torch.stack([own, own])], 1))

    torch.manual_seed(0)
    made = diagnosed(WithLoops(), graph_loss, lambda step: graph(step) | {"edges": graph(step)["edges"].flip(0)})
    assert made.rows is None
    assert any("indivisible" in note for note in made.notes)


def test_a_packed_batch_is_indivisible() -> None:
    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.out = nn.Embedding(50, 8), nn.Linear(8, 1)

        def forward(self, tokens: Tensor, starts: Tensor) -> Tensor:
            hidden = self.out(self.table(tokens))
            sums = torch.stack([hidden[a:b].sum(0) for a, b in pairwise(starts)])
            counts = (starts[1:] - starts[:-1]).unsqueeze(1)
            out: Tensor = sums / counts
            return out

    def make(step: int) -> dict[str, Tensor]:
        starts = torch.tensor([0, 4, 4, 12]) if step == 5 else torch.tensor([0, 4, 7, 12])
        return {"tokens": torch.randint(0, 50, (12,)), "starts": starts, "labels": torch.randint(0, 50, (12,))}

    torch.manual_seed(0)
    found = diagnosed(Packed(), lambda m, b: m(b["tokens"], b["starts"]).pow(2).mean(), make)
    assert found.cause is not None
    assert found.cause.slug in ("zero_division", "empty_reduction")
    assert found.rows is None
    assert any("'starts' says where sequences begin" in note for note in found.notes)


@pytest.mark.parametrize("labels", ["long", "picked"])
def test_labels_and_token_ids_do_not_make_a_batch_indivisible(labels: str) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 8)

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        logits = model(batch["x"]).log_softmax(-1)
        each = -logits[torch.arange(len(logits)), batch["y"]]
        if labels == "long":
            each = F.nll_loss(logits, batch["y"], reduction="none")
        return (each / batch["weight"]).mean()

    def make(step: int) -> dict[str, Tensor]:
        weight = torch.ones(8)
        if step == 5:
            weight[3] = 0.0
        return {"x": torch.randn(8, 4), "y": torch.randint(0, 8, (8,)), "weight": weight}

    found = diagnosed(model, loss, make)
    assert not any("indivisible" in note for note in found.notes)
    assert found.rows == (3,)


def test_a_step_that_does_not_run_with_other_rows_says_so_and_is_not_called_coupled() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        if not any(torch.equal(batch, whole) for whole in seen):
            raise ValueError("only whole batches")
        out: Tensor = model(batch)
        return (out.sum() / (batch[:, 0] != 0).float()).mean()

    seen: list[Tensor] = []

    def make(step: int) -> Tensor:
        batch = torch.randn(6, 4)
        if step == 5:
            batch[2, 0] = 0.0
        seen.append(batch)
        return batch

    found = diagnosed(model, loss, make, steps=6)
    assert found.rows == (2,)  # what the division gave has one number for each of them
    assert not found.rows_coupled
    assert any("rows: read off what the operation gave: the step does not run with other rows (ValueError:" in note
               for note in found.notes)  # fmt: skip


def test_integer_entries_of_a_batch_are_never_changed_only_left_out() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 1))
    seen = Mock()  # a list would be as it was before the diagnosis, and a queue may not be used

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        seen(batch["ids"].clone())
        return (model(batch["ids"]).squeeze(-1) / batch["weight"]).mean()

    def make(step: int) -> dict[str, Tensor]:
        weight = torch.ones(6)
        if step == 5:
            weight[2] = 0.0
        return {"ids": (torch.arange(6) + step) % 9, "weight": weight}

    diagnosed(model, loss, make)
    allowed = [set(make(step)["ids"].tolist()) for step in range(9)]
    used = [ids for (ids,), _ in seen.call_args_list]
    assert len(used) > 20
    for ids in used:
        assert ids.dtype is torch.int64
        assert any(set(ids.tolist()) <= given for given in allowed)


def test_rows_that_are_put_in_the_order_of_their_lengths_can_be_cut() -> None:
    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        order = batch["length"].sort(descending=True).indices
        hidden = model(batch["x"][order]).squeeze(1)
        return (hidden / batch["weight"][order]).pow(2).mean()

    def make(step: int) -> dict[str, Tensor]:
        weight = torch.ones(6)
        if step == 5:
            weight[4] = 0.0
        return {"x": torch.randn(6, 3), "length": torch.randint(1, 9, (6,)), "weight": weight}

    torch.manual_seed(0)
    assert diagnosed(nn.Linear(3, 1), loss, make).rows == (4,)

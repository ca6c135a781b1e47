"""On CUDA: rows taken out of a batch must not end the process, and a refusal needs no memory of its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import steadygrad as sg

pytestmark = pytest.mark.gpu


class GraphNet(nn.Module):
    """Sums messages in half precision: a node with very many large neighbours overflows."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, x: Any, edges: Any) -> Any:
        hidden = self.inner(x).half()
        total = torch.zeros_like(hidden).index_add_(0, edges[1], hidden[edges[0]])
        return self.outer(total.float())


class Lookup(nn.Module):
    """Rows of the batch point at rows of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 1)

    def forward(self, x: Any, edges: Any) -> Any:
        return self.inner(x[edges[0, : x.shape[0]]] / x[edges[1, : x.shape[0]]].abs().sum(1, keepdim=True))


class Embedded(nn.Module):
    """The largest index of the batch is the size of a table that the batch brings along."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 1)

    def forward(self, x: Any, edges: Any) -> Any:
        return self.inner(functional.embedding(edges[0, :64], x).half().mul(2).float())


@pytest.mark.parametrize("kind", [GraphNet, Lookup, Embedded])
def test_rows_cut_out_of_a_batch_that_indexes_itself_do_not_end_the_process(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model = kind().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

    def batch(step: int) -> dict[str, Any]:
        x, edges = torch.randn(64, 8, device="cuda"), torch.randint(0, 64, (2, 4096), device="cuda")
        if step == 5:
            x = x * 4e4
            edges[1] = 7
            x[7] = float("nan") if kind is Lookup else x[7]
        return {"x": x, "edges": edges, "y": torch.randn(64, 1, device="cuda")}

    def loss_fn(module: Any, given: Any) -> Any:
        return (module(given["x"], given["edges"]) - given["y"]).pow(2).mean()

    with sg.Guard(model, optimizer, loss_fn) as guard:
        for step in range(12):
            guard.step(batch(step))
    torch.cuda.synchronize()
    assert guard.summary()["skipped"] == 1
    assert all(bool(torch.isfinite(p).all()) for p in model.parameters())


@pytest.mark.parametrize("clip", [1.0, None])
@pytest.mark.parametrize("bad_steps", [{12}, {8, 9, 20}])
def test_a_refusal_fits_where_the_plain_loop_fits(bad_steps: set[int], clip: float | None) -> None:
    torch.manual_seed(0)
    layers = [nn.TransformerEncoderLayer(256, 4, 1024, 0.0, batch_first=True) for _ in range(4)]
    model = nn.Sequential(nn.Embedding(8000, 256), *layers, nn.Linear(256, 8000)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    ids = torch.randint(0, 8000, (16, 257), device="cuda")

    def loss_fn(module: Any, given: Any) -> Any:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            out = module(given["ids"][:, :-1])
        each = functional.cross_entropy(out.float().transpose(1, 2), given["ids"][:, 1:], reduction="none")
        return ((each * given["w"]).sum(1) / given["w"].sum(1)).mean()

    good = {"ids": ids, "w": torch.ones(16, 256, device="cuda")}
    bad = {"ids": ids, "w": good["w"].clone()}
    bad["w"][1] = 0
    for _ in range(3):
        loss_fn(model, good).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
    torch.cuda.synchronize()
    whole = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(torch.cuda.max_memory_reserved() * 1.02 / whole)
    try:
        with sg.Guard(model, optimizer, loss_fn, max_grad_norm=clip) as guard:
            for step in range(24):
                guard.step(bad if step in bad_steps else good)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert guard.summary()["skipped"] == len(bad_steps)

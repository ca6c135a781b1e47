"""Whole training steps that the program records into a CUDA graph, beside `sg.attach` and under `steady run`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import steadygrad as sg
from steadygrad.detect.tensors.graph_capture import NOT_CHECKED
from steadygrad.records.errors import UsageError

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
PROGRAM = """
import sys, torch
from torch import nn
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(16, 64), nn.Dropout(0.1), nn.Tanh(), nn.Linear(64, 1)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, capturable=True, fused=True)
guard = attach(optimizer, model) if "attach" in globals() else None
generator = torch.Generator().manual_seed(3)
data = [torch.randn(8, 17, generator=generator).cuda() for _ in range(30)]
static = data[0].clone()
def step():
    loss = (model(static[:, :16]) - static[:, 16:]).pow(2).mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for batch in data[:4]:
        static.copy_(batch)
        optimizer.zero_grad(set_to_none=True)
        step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
optimizer.zero_grad(set_to_none=True)
with torch.cuda.graph(graph):
    loss = step()
for batch in data[4:]:
    static.copy_(batch)
    graph.replay()
torch.cuda.synchronize()
found = [p.detach().cpu() for p in model.parameters()]
found += [value.cpu() for p in model.parameters() for value in optimizer.state[p].values()]
if len(sys.argv) > 1:
    torch.save(found, sys.argv[1])
"""


def run(attach: Any = None) -> list[Tensor]:
    names: dict[str, Any] = {"attach": attach} if attach is not None else {}
    exec(compile(PROGRAM, "program.py", "exec"), names)
    if names.get("guard") is not None:
        names["guard"].close()
        summary = names["guard"].summary()
        assert summary["guard_faults"] == {}
        assert summary["steps"] == 4
        assert summary["not_checked"] == NOT_CHECKED
    return list(names["found"])


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))


def test_a_captured_step_beside_attach_has_the_bits_of_the_plain_run() -> None:
    plain = run()
    assert same(plain, run())
    assert same(plain, run(lambda optimizer, model: sg.attach(optimizer, model=model)))


def test_a_captured_step_under_steady_run_has_the_bits_of_the_plain_run(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "steadygrad.commands", "run", "--run-dir", str(tmp_path / "run")]
    ended = subprocess.run(
        [*command, str(tmp_path / "program.py"), str(tmp_path / "out.pt")], capture_output=True, text=True, timeout=300
    )
    assert ended.returncode == 0, ended.stderr
    assert "recorded into a CUDA graph" in ended.stderr
    assert same(run(), torch.load(tmp_path / "out.pt"))


def test_a_guards_step_in_a_capture_is_refused_before_anything_is_touched() -> None:
    model = nn.Linear(4, 1).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True, capturable=True)
    x = torch.ones(8, 4, device="cuda")
    with sg.Guard(model, optimizer, lambda m, b: m(b).pow(2).mean()) as guard:
        guard.step(x)
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            x * 2
            with pytest.raises(UsageError, match="CUDA graph is captured"):
                guard.step(x)
        assert guard.step(x).applied
        assert guard.summary()["guard_faults"] == {}

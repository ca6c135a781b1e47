"""How early, and how truly, `SY418` says when a module leaves float16: runs whose outputs grow until they overflow.

    python -m benchmarks.overflow_warning --md benchmarks/results/overflow-warning-h200-host.md

Twelve runs of small networks in float16 autocast on a CPU, each with another reason to grow. The lead is the number of
updates from the first warning to the first infinite output; the interval is the one that the warning states.
"""

from __future__ import annotations

import argparse
import logging
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import steadygrad as sg

LIMIT = 65504.0
UPDATES = 6000


class Residual(nn.Module):
    """Blocks without a norm: what enters is carried through and grows with the weights."""

    def __init__(self, depth: int, width: int = 32) -> None:
        super().__init__()
        self.inp, self.out = nn.Linear(8, width), nn.Linear(width, 1)
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, given: Tensor) -> Tensor:
        hidden = self.inp(given)
        for block in self.blocks:
            hidden = hidden + F.relu(block(hidden))
        return self.out(hidden)


class Attention(nn.Module):
    """Dot products of queries and keys without a norm: their size is that of the weights squared."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(8, width, bias=False) for _ in range(3))
        self.scores, self.out = nn.Identity(), nn.Linear(width, 1)

    def forward(self, given: Tensor) -> Tensor:
        scores = self.scores(self.query(given) @ self.key(given).T)
        return self.out(scores.float().softmax(-1) @ self.value(given).float())


@dataclass(frozen=True)
class Run:
    """A network, a loss that lets it grow, and the optimizer."""

    model: Callable[[], nn.Module]
    loss: Callable[[nn.Module, Tensor], Tensor]
    rate: float
    optimizer: type[torch.optim.Optimizer] = torch.optim.SGD


def away(model: nn.Module, given: Tensor) -> Tensor:
    """A loss without a lower bound, as a critic without a penalty has: outputs are pushed apart for ever."""
    half = len(given) // 2
    return (model(given[:half]).float().mean() - model(given[half:] + 1.0).float().mean()).clamp(min=-1e9)


def margin(model: nn.Module, given: Tensor) -> Tensor:
    """Separable classes: the logistic loss falls as long as the logits grow."""
    return F.softplus(-(given[:, :1] > 0).float().mul(2).sub(1) * model(given).float()).mean()


def entropy(model: nn.Module, given: Tensor) -> Tensor:
    """A penalty with the wrong sign rewards large outputs."""
    return (
        F.mse_loss(model(given).float(), given.sum(1, keepdim=True)) - 1.2 * model(given).float().pow(2).mean().sqrt()
    )


def linear() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))


def scaled_inputs() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1))


RUNS: dict[str, Run] = {
    "critic without a penalty, SGD": Run(linear, away, 2e-2),
    "critic without a penalty, Adam": Run(linear, away, 3e-3, torch.optim.Adam),
    "critic of three layers, Adam": Run(scaled_inputs, away, 1e-3, torch.optim.Adam),
    "critic of three layers, SGD": Run(scaled_inputs, away, 1e-2),
    "residual critic, 4 blocks": Run(lambda: Residual(4), away, 1e-3),
    "residual critic, 8 blocks, Adam": Run(lambda: Residual(8), away, 3e-4, torch.optim.Adam),
    "residual critic, 12 blocks": Run(lambda: Residual(12), away, 1e-4),
    "penalty with the wrong sign, SGD": Run(linear, entropy, 3e-3),
    "penalty with the wrong sign, Adam": Run(scaled_inputs, entropy, 1e-3, torch.optim.Adam),
    "penalty with the wrong sign, residual": Run(lambda: Residual(6), entropy, 3e-4, torch.optim.Adam),
    "attention scores, Adam": Run(Attention, away, 3e-3, torch.optim.Adam),
    "margin without an end, Adam": Run(lambda: Residual(4), margin, 3e-3, torch.optim.Adam),
}


def measure(run: Run, seed: int) -> dict[str, Any]:
    """The update of the first warning, what it said, and the update of the first infinite output."""
    torch.manual_seed(seed)
    model = run.model()
    optimizer = run.optimizer(model.parameters(), lr=run.rate)
    overflow: list[int] = []
    step = 0

    def look(_module: nn.Module, _inputs: Any, output: Tensor) -> None:
        if not overflow and output.dtype is torch.float16 and not bool(torch.isfinite(output).all()):
            overflow.append(step)

    for module in model.modules():
        module.register_forward_hook(look)
    guard = sg.attach(optimizer, model=model)
    for step in range(UPDATES):  # noqa: B007
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = run.loss(model, torch.randn(32, 8))
        if overflow:
            break
        loss.backward()
        optimizer.step()
    guard.close()
    said = [found for found in guard.vitals if found.code == "SY418"]
    return {"overflow": overflow[0] if overflow else None, "warnings": said}


def row(name: str, answer: dict[str, Any]) -> tuple[str, int | None]:
    overflow, said = answer["overflow"], answer["warnings"]
    if not said:
        return f"| {name} | {overflow if overflow is not None else 'none'} | none | | |", None
    first = said[0]
    interval = f"{first.step + first.evidence['earliest']} to {first.step + first.evidence['latest']}"
    lead = None if overflow is None else overflow - first.step
    inside = overflow is not None and (
        first.step + first.evidence["earliest"] <= overflow <= first.step + first.evidence["latest"]
    )
    shown = "yes" if inside else "no"
    return f"| {name} | {overflow} | {first.step} | {interval} | {'' if lead is None else lead}, {shown} |", lead


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--md", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--slower", type=float, default=1.0, help="divide every rate by this: growth takes longer")
    given = parser.parse_args()
    logging.getLogger("steadygrad").setLevel(logging.CRITICAL)
    torch.set_num_threads(1)
    lines = ["| run | first overflow at update | first warning at | said to overflow at | lead, inside |"]
    lines.append("|---|---|---|---|---|")
    leads: list[int] = []
    for name, run in RUNS.items():
        line, lead = row(name, measure(replace(run, rate=run.rate / given.slower), given.seed))
        print(line, flush=True)
        lines.append(line)
        leads += [] if lead is None else [lead]
    summary = (
        f"{len(leads)} of {len(RUNS)} runs were warned of; median lead {statistics.median(leads or [0]):.0f} updates."
    )
    print(summary)
    if given.md:
        given.md.write_text("\n".join([*lines, "", summary, ""]))


if __name__ == "__main__":
    main()

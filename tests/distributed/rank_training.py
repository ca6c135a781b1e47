"""A small training run on several ranks, guarded or plain, with something wrong on one of them."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

import steadygrad as sg
from steadygrad.detect.tensors.sharded_tensors import local_of
from steadygrad.integrations.loops.loop_guard import LoopGuard

FEATURES = 6
TALKATIVE = False
"""Whether the loss itself talks to the other ranks."""


class Net(nn.Module):
    """Running statistics, dropout's random numbers, and a backward that can turn bad where the forward is fine."""

    def __init__(self, *, norm: str = "batch") -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, 9)
        self.norm: nn.Module = nn.BatchNorm1d(9) if norm == "batch" else nn.LayerNorm(9)
        self.drop = nn.Dropout(0.2)
        self.last = nn.Linear(9, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.drop(torch.tanh(self.norm(self.first(x)))))
        return out


def loss_fn(model: nn.Module, batch: dict[str, Any]) -> dict[str, Tensor]:
    out = model(batch["x"])
    fit = ((out - batch["y"]) ** 2).mean()
    if TALKATIVE:
        middle = out.detach().mean(0)
        dist.all_reduce(middle)  # a loss that looks at what the other ranks made of their batches
        fit = fit + 0.1 * (out - middle / dist.get_world_size()).square().mean()
    # Zero unless the batch asks for it, and then of a finite value whose gradient is not: sqrt at zero.
    trap = torch.sqrt((out * 0.0).sum() ** 2) if batch.get("trap") else out.sum() * 0.0
    return {"loss": fit + trap, "fit": fit.detach(), "trap": trap.detach()}


def build(kind: str, world: int) -> nn.Module:
    torch.manual_seed(0)
    if kind == "ddp":
        return nn.parallel.DistributedDataParallel(Net())
    net = Net(norm="layer")
    mesh = None
    if kind == "hsdp":
        mesh = torch.distributed.init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("copies", "parts"))
    for module in (net.first, net.last):
        fully_shard(module, mesh=mesh)
    fully_shard(net, mesh=mesh)
    return net


def make() -> tuple[nn.Module, torch.optim.Optimizer, Any]:
    """What `steady replay --entry` needs to run a rank's step again in one process."""
    model = Net()
    return model, make_optimizer(model, "adamw"), loss_fn


def batches(rank: int, count: int, poison: dict[str, Any] | None) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(1000 + rank)
    made = []
    for index in range(count):
        x = torch.randn(5, FEATURES, generator=generator)
        batch: dict[str, Any] = {"x": x, "y": torch.tanh(x[:, :3]) + 0.1 * torch.randn(5, 3, generator=generator)}
        if poison and index in poison["batches"] and rank in poison["ranks"]:
            if poison["how"] == "trap":
                batch["trap"] = True
            else:
                factor = {"nan": math.nan, "inf": math.inf, "spike": 1e4}[poison["how"]]
                batch["y" if poison["how"] == "spike" else "x"] = (
                    batch["y" if poison["how"] == "spike" else "x"] * factor
                )
        made.append(batch)
    return made


def make_optimizer(model: nn.Module, name: str) -> torch.optim.Optimizer:
    if name == "sgd":
        return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return torch.optim.AdamW(model.parameters(), lr=0.02)


def digest(tensors: list[Tensor]) -> str:
    hashed = hashlib.sha256()
    for tensor in tensors:
        hashed.update(local_of(tensor.detach()).contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return hashed.hexdigest()[:16]


def whole(tensor: Tensor) -> Tensor:
    full = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor  # type: ignore[operator]
    assert isinstance(full, Tensor)
    return full


def bits(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Everything that training moves, as hashes: of this rank's part, and of the whole weights."""
    moments = [v for p in model.parameters() for v in optimizer.state[p].values() if isinstance(v, Tensor)]
    return {
        "weights": digest([whole(p) for p in model.parameters()]),
        "part": digest(list(model.parameters())),
        "moments": digest(moments),
        "buffers": digest([b.float() for b in model.buffers()]),
        "random": digest([torch.get_rng_state()]),
        "rate": optimizer.param_groups[0]["lr"],
    }


def plain(
    rank: int, world: int, *, kind: str, optimizer: str, given: list[dict[str, Any]], accumulate: int,
    clip: float | None = 1.0,
) -> dict[str, Any]:  # fmt: skip
    """The loop that nobody guards."""
    model = build(kind, world)
    opt = make_optimizer(model, optimizer)
    schedule = torch.optim.lr_scheduler.StepLR(opt, step_size=3, gamma=0.9)
    torch.manual_seed(77 + rank)
    for index, batch in enumerate(given):
        (loss_fn(model, batch)["loss"] / accumulate).backward()
        if (index + 1) % accumulate == 0:
            if clip is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            opt.step()
            schedule.step()
            opt.zero_grad()
    return bits(model, opt)


def guarded(
    rank: int, world: int, *, kind: str, optimizer: str, given: list[dict[str, Any]], accumulate: int = 1,
    clip: float | None = 1.0, run_dir: Path | None = None, poke: dict[str, int] | None = None,
    policy: dict[str, Any] | None = None, **options: Any,
) -> tuple[dict[str, Any], sg.Guard]:  # fmt: skip
    model = build(kind, world)
    opt = make_optimizer(model, optimizer)
    schedule = torch.optim.lr_scheduler.StepLR(opt, step_size=3, gamma=0.9)
    torch.manual_seed(77 + rank)
    options = {"diagnose": "off", "policy": sg.Policy.named("balanced").but(**(policy or {})), **options}
    guard = sg.Guard(
        model, opt, loss_fn, max_grad_norm=clip, scheduler=schedule, accumulate=accumulate, run_dir=run_dir, **options
    )  # fmt: skip
    for batch in given[guard.batches_seen :]:
        if poke and poke["rank"] == rank and guard.batches_seen == poke["before"]:
            with torch.no_grad():
                local_of(next(model.parameters()).data).view(-1)[0] = math.nan
        guard.step(batch)
    return bits(model, opt), guard


def told(guard: sg.Guard) -> dict[str, Any]:
    """What a guard says of its run that must be the same on every rank."""
    summary = guard.summary()
    names = ("steps", "applied", "skipped", "rolled_back", "incidents", "lr_factor", "clip_factor", "halted", "settles")
    return {
        **{name: summary[name] for name in names},
        "faults": summary["guard_faults"],
        "stories": [
            [i.number, i.first_step, i.symptom, i.headline, [f.rank for f in i.findings]] for i in guard.incidents
        ],
        "diagnoses": [
            [
                d.cause.slug if d.cause else None,
                d.origin.op if d.origin else None,
                d.rows,
                [t.remedy.slug for t in d.remedies],
            ]
            for d in (i.diagnosis for i in guard.incidents)
            if d is not None
        ],
    }


def all_equal(value: Any) -> bool:
    """Whether every rank holds the same; asked of the ranks themselves."""
    held: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(held, value)
    return all(each == held[0] for each in held)


def attached(
    rank: int, world: int, *, kind: str, optimizer: str, given: list[dict[str, Any]], door: str
) -> tuple[dict[str, Any], Any]:
    """The plain loop, with a guard at its optimizer's `step()` or told of every step by the loop."""
    model = build(kind, world)
    opt = make_optimizer(model, optimizer)
    schedule = torch.optim.lr_scheduler.StepLR(opt, step_size=3, gamma=0.9)
    torch.manual_seed(77 + rank)
    if door == "optimizer":
        guard: Any = sg.attach(opt, model=model, scheduler=schedule)
    else:
        guard = LoopGuard(model, opt, loss_fn, scheduler=schedule, max_grad_norm=1.0, diagnose="off")
    for batch in given:
        if door == "loop":
            guard.begin(batch)
        terms = loss_fn(model, batch)
        terms["loss"].backward()
        if door == "loop":
            guard.seen(batch, {name: value.detach() for name, value in terms.items()})
            guard.before_clip()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if door == "optimizer":
            opt.step()
            schedule.step()
        elif guard.commit(opt.step):
            schedule.step()
        opt.zero_grad()
    return bits(model, opt), guard

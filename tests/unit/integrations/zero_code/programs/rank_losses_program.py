"""DDP on CPU with a loss of the loop's own: one rank goes bad in four ways, each trained with it and without.

Every rank prints which bits the two runs differ in and the hash of its weights. `collect_evidence` talks to the
other ranks while the loss is computed, so no rank can run it again by itself. With `weights` it is one rank's
weights that turn bad: the run to compare with has not seen the update since the last good state either.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import torch
import torch.distributed as dist
from common_parts import Net, differing, state
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

STEPS, BATCH, BAD, GUILTY = 5, 4, 2, 1


def by_log(out: Tensor, weight: Tensor) -> Tensor:
    return (out.square() * weight.log()).mean()


def by_root(out: Tensor, weight: Tensor) -> Tensor:
    return (out * 0 + weight).sqrt().mean() + out.square().mean()


def by_gather(out: Tensor, weight: Tensor) -> Tensor:
    total = out.detach().abs().mean()
    dist.all_reduce(total)
    return (out.square() * weight.log()).mean() / total


LOSSES = {"log": (by_log, -1.0), "root": (by_root, 0.0), "gather": (by_gather, -1.0), "weights": (by_log, 1.0)}


def train(fault: str, poison: bool) -> dict[str, Any]:
    rank = dist.get_rank()
    loss_of, bad_weight = LOSSES[fault]
    generator = torch.Generator().manual_seed(rank)
    x, weight = torch.randn(STEPS * BATCH, 3, generator=generator), torch.rand(STEPS * BATCH, generator=generator) + 1.5
    rows = list(range(STEPS * BATCH))
    if not poison:
        lost = (BAD - 1, BAD) if fault == "weights" else (BAD,)
        rows = [row for row in rows if row // BATCH not in lost]
    elif rank == GUILTY:
        weight[BAD * BATCH + 1] = bad_weight
    torch.manual_seed(0)
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.9)
    torch.manual_seed(7 + rank)
    for step, (points, weights) in enumerate(DataLoader(TensorDataset(x[rows], weight[rows]), BATCH)):
        if fault == "weights" and poison and step == BAD and rank == GUILTY:
            model.module.body[0].weight.data[0, 0] = float("nan")
        optimizer.zero_grad()
        out = model(points)
        loss = loss_of(out, weights)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return state(model, optimizer, schedule) | {"random numbers": torch.get_rng_state()}


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for fault in LOSSES:
        clean, poisoned = train(fault, False), train(fault, True)
        weights = b"".join(value.numpy().tobytes() for name, value in poisoned.items() if name.startswith("optimizer"))
        told = {
            "rank": dist.get_rank(),
            "fault": fault,
            "compared": len(clean),
            "differing": differing(clean, poisoned),
            "hash": hashlib.sha256(weights).hexdigest(),
        }
        # One write, so that lines of two ranks do not mix.
        print("RESULT " + json.dumps(told) + "\n", end="", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

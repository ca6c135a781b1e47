"""DDP on CPU: one rank gets a poisoned batch. Every rank prints whether it is finite and the hash of its weights."""

from __future__ import annotations

import hashlib
import json

import torch
import torch.distributed as dist
from common_parts import Net
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = Net()
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    generator = torch.Generator().manual_seed(rank)
    for step in range(5):
        x = torch.randn(4, 3, generator=generator)
        if step == 2 and rank == 1:
            x[0, 0] = float("nan")
        optimizer.zero_grad()
        wrapped(x).pow(2).mean().backward()
        torch.nn.utils.clip_grad_norm_(wrapped.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    told = {
        "rank": rank,
        "finite": all(bool(torch.isfinite(value).all()) for value in model.state_dict().values()),
        "hash": hashlib.sha256(weights).hexdigest(),
        "schedule": schedule.last_epoch,
    }
    # One write, so that lines of two ranks do not mix.
    print("RESULT " + json.dumps(told) + "\n", end="", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

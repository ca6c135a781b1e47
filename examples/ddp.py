"""Several ranks, a guard on each: a batch that is broken on one rank is skipped by all, a killed rank is replaced.

    torchrun --nproc-per-node 2 --max-restarts 1 examples/ddp.py runs/ddp
    torchrun --nproc-per-node 2 --max-restarts 1 examples/ddp.py runs/ddp_killed --kill-rank 1 --before-batch 45

The second line kills a rank once, in the middle of the run. torchrun starts all of them again, and they go on from the
last checkpoint that every rank has, with their counters and the batches they refused. Both end with the same weights.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal

import torch
import torch.distributed as dist
from torch import Tensor, nn

import steadygrad as sg

BATCHES = 60
BROKEN_BATCH = 12


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 2))


def batches(rank: int) -> list[tuple[Tensor, Tensor]]:
    """Every rank has data of its own. One batch of rank 1 was read from a damaged file."""
    generator = torch.Generator().manual_seed(100 + rank)
    made = []
    for index in range(BATCHES):
        points = torch.randn(16, 8, generator=generator)
        target = torch.stack((points[:, 0] * points[:, 1], points.sum(1)), dim=1)
        if rank == 1 and index == BROKEN_BATCH:
            points[3] = float("nan")
        made.append((points, target))
    return made


def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    points, target = batch
    return nn.functional.mse_loss(model(points), target)


def main(run_dir: str, *, kill_rank: int | None = None, before_batch: int = 0) -> dict[str, object]:
    rank = dist.get_rank()
    model = nn.parallel.DistributedDataParallel(make_model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(1 + rank)  # dropout differs from rank to rank
    guard = sg.Guard(
        model,
        optimizer,
        loss_fn,
        max_grad_norm=1.0,
        run_dir=run_dir,
        checkpoint_every=20,
        resume=True,
        diagnose="origin",
    )
    first_try = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) == 0
    began_at = guard.batches_seen
    with guard:
        for batch in batches(rank)[guard.batches_seen :]:
            if first_try and rank == kill_rank and guard.batches_seen == before_batch:
                os.kill(os.getpid(), signal.SIGKILL)
            guard.step(batch)
    weights = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()[:12]
    found = {name: guard.summary()[name] for name in ("steps", "applied", "skipped")}
    return {"rank": rank, "began_at": began_at, **found, "weights": weights}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("run_dir", nargs="?", default="runs/ddp")
    parser.add_argument("--kill-rank", type=int)
    parser.add_argument("--before-batch", type=int, default=45)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    told = main(arguments.run_dir, kill_rank=arguments.kill_rank, before_batch=arguments.before_batch)
    print(f"rank {told['rank']}: {told}", flush=True)
    dist.destroy_process_group()

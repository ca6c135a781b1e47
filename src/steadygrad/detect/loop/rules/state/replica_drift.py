"""Replicas of a network are trained on parts of the same batches and become different networks.

What it sees
    Parts of a model that are siblings began with the same weights, to the bit. At each of the first 20 updates they are
    given different rows of one tensor, what they return is put together again or each has a backward pass to itself,
    and their weights are different.

Why it hurts
    Each replica learns from its own part of the data alone. What is saved is one of them.

Smallest example
    if config.get("world_size", 1) > 1: average_gradients(replicas)    # the key is missing
    # fixed
    if len(replicas) > 1: average_gradients(replicas)                  # after backward, before the update

What to do
    Average the gradients of the replicas after each backward pass and before the update, or use
    `DistributedDataParallel`.

Safety
    It changes nothing. Layers that begin as copies of one another, members of an ensemble that are given whole batches,
    and replicas that are averaged now and then, at least every 20 updates, are not reported. Replicas in other
    processes are not compared. Looked at in host memory.

References
    https://docs.pytorch.org/docs/stable/notes/ddp.html
"""

from __future__ import annotations

from .....records import Finding
from .....records.rules import Rule
from ...loop_record import LoopRecord, UpdateSeen
from ..loop_finding import loop_finding

RULE = Rule(
    "SY469",
    "replica_drift",
    "Replicas of a network are trained on parts of the same batches and become different networks.",
)


def judge(record: LoopRecord) -> Finding | None:
    """Pure."""
    if not record.replicas:
        return None
    fix = "average the gradients of the replicas after each backward pass and before the update"
    return loop_finding(RULE, record, record.replicas, fix=fix)


def _record(replicas: str) -> LoopRecord:
    record = LoopRecord(replicas=replicas)
    record.add(UpdateSeen())
    return record


def SPECIMEN() -> LoopRecord:
    return _record("replicas.0 and replicas.1 began with the same weights and differ after 20 updates")


def NEAR_MISS() -> LoopRecord:
    return _record("")

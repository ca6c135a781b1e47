"""Aligned passages as tensors. Rows are padded on the right, where a causal model cannot see the padding.

Shapes: B passages, L tokens of the longest, P aligned positions of the passage that has most.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import islice

import torch
from torch import Tensor

from .alignment import Aligned

Batch = dict[str, Tensor]


def collate(rows: Sequence[Aligned], *, device: torch.device) -> Batch:
    """`labels` are -100 where there is nothing to learn; `paired` says which of the aligned positions are real."""
    labels = [[*row.student[1:], -100] for row in rows]
    pairs = [row.pairs for row in rows]
    found = {
        "student_ids": _padded([row.student for row in rows], 0),
        "labels": _padded(labels, -100),
        "teacher_ids": _padded([row.teacher for row in rows], 0),
        "teacher_mask": _padded([[1] * len(row.teacher) for row in rows], 0).bool(),
        "at_student": _padded([[student for student, _ in each] for each in pairs], 0),
        "at_teacher": _padded([[teacher for _, teacher in each] for each in pairs], 0),
        "paired": _padded([[1] * len(each) for each in pairs], 0).bool(),
    }
    if device.type != "cuda":
        return found
    return {name: tensor.pin_memory().to(device, non_blocking=True) for name, tensor in found.items()}


def in_order(rows: Sequence[Aligned], *, batch_size: int, device: torch.device) -> Iterator[Batch]:
    """Every row once, those of a length together."""
    by_length = sorted(rows, key=lambda row: len(row.student))
    for start in range(0, len(by_length), batch_size):
        yield collate(by_length[start : start + batch_size], device=device)


def shuffled(
    rows: Sequence[Aligned], *, batch_size: int, steps: int, seed: int, device: torch.device, skip: int = 0
) -> Iterator[Batch]:
    """`steps` batches, epoch after epoch in a new order. With `skip`, the same ones less the first."""
    order = shuffled_numbers(len(rows), batch_size=batch_size, steps=steps, seed=seed)
    for numbers in islice(order, skip, None):
        yield collate([rows[number] for number in numbers], device=device)


def shuffled_numbers(count: int, *, batch_size: int, steps: int, seed: int) -> Iterator[list[int]]:
    """Which rows are in each of the batches."""
    chance = random.Random(seed)
    waiting: list[int] = []
    for _ in range(steps):
        while len(waiting) < batch_size:
            epoch = list(range(count))
            chance.shuffle(epoch)
            waiting += epoch
        yield waiting[:batch_size]
        waiting = waiting[batch_size:]


def _padded(rows: Sequence[Sequence[int]], filler: int) -> Tensor:
    length = max(1, max(len(row) for row in rows))
    return torch.tensor([[*row, *[filler] * (length - len(row))] for row in rows])

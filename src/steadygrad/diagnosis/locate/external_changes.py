"""What changed between the steps: a weight, buffer or moment that no optimizer step wrote."""

from __future__ import annotations

import math

import torch

from ...detect.tensors.readable_tensors import has_plain_memory
from ..causes.evidence import StateChange
from ..replay.replay_observation import absmax, named_state
from ..replay.replayable import Replayable


def fingerprints(replayable: Replayable) -> dict[tuple[str, str], tuple[int, int]]:
    """Two sums over the raw bits of everything that lasts: one flipped bit changes them. One read from each device."""
    sums: dict[torch.device, list[tuple[tuple[str, str], torch.Tensor]]] = {}
    for kind, name, tensor in named_state(replayable):
        if tensor.is_complex() or not tensor.numel():
            continue
        raw = tensor.detach().contiguous().reshape(-1)
        bits = raw.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[raw.element_size()])
        both = torch.stack([bits.sum(dtype=torch.int64), bits[::2].sum(dtype=torch.int64)])
        sums.setdefault(tensor.device, []).append(((kind, name), both))
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for rows in sums.values():
        for (key, _), (total, half) in zip(rows, torch.stack([both for _, both in rows]).tolist(), strict=True):
            found[key] = (total, half)
    return found


def changes_between_steps(replayable: Replayable) -> tuple[StateChange, ...]:
    """What `prepare` does to the state, element by element, for the tensors it touched."""
    replayable.restore()
    before = fingerprints(replayable)
    replayable.prepare()
    after = fingerprints(replayable)
    touched = {key for key, sums in after.items() if before.get(key) != sums}
    if not touched:
        return ()
    replayable.restore()
    old = {(kind, name): t.detach().clone() for kind, name, t in named_state(replayable) if (kind, name) in touched}
    replayable.prepare()
    return tuple(
        _compare(kind, name, old.get((kind, name)), t)
        for kind, name, t in named_state(replayable)
        if (kind, name) in touched
    )


def _compare(kind: str, name: str, old: torch.Tensor | None, new: torch.Tensor) -> StateChange:
    if old is None or old.shape != new.shape:
        return StateChange(
            kind=kind,
            name=name,
            num_changed=new.numel(),
            num_elements=new.numel(),
            absmax_before=0.0,
            absmax_after=absmax(new),
        )
    if old.is_floating_point() and old.element_size() == 1:
        old, new = old.float(), new.float()
    differs = (old != new) & ~(torch.isnan(old) & torch.isnan(new)) if old.is_floating_point() else old != new
    return StateChange(
        kind=kind,
        name=name,
        num_changed=int(differs.sum()),
        num_elements=new.numel(),
        absmax_before=absmax(old),
        absmax_after=absmax(new),
        non_finite_after=not math.isfinite(absmax(new)),
        out_of_range=out_of_range(old, new),
    )


def out_of_range(old: torch.Tensor, new: torch.Tensor) -> bool:
    """Far beyond the largest magnitude before, or negative where everything was positive (a variance)."""
    if not old.is_floating_point() or not old.numel() or not (has_plain_memory(old) and has_plain_memory(new)):
        return False
    if old.element_size() == 1:
        old, new = old.float(), new.float()
    if not bool(torch.isfinite(new).all()) or absmax(new) > 100 * max(absmax(old), 1e-8):
        return True
    return bool((old >= 0).all()) and bool((new < 0).any())


def huge_state(replayable: Replayable) -> tuple[str, float, int] | None:
    """A parameter with a few entries far beyond all others: (name, largest value, how many). For bit flips."""
    worst: tuple[str, float, int] | None = None
    for kind, name, tensor in named_state(replayable):
        if kind != "parameter" or tensor.numel() < 8 or not tensor.is_floating_point():
            continue
        size = tensor.detach().to(torch.float64).abs().reshape(-1)
        size = torch.nan_to_num(size, nan=math.inf, posinf=math.inf)
        top = torch.topk(size, min(8, size.numel())).values
        usual = float(size.median()) or float(top[-1])
        if float(top[0]) < 1e15 and (usual <= 0 or float(top[0]) < 1e10 * max(usual, 1.0)):
            continue
        if float(top[-1]) >= 1e8 or float(size.median()) >= 1e8:
            worst = worst or (name, float(top[0]), size.numel())
            continue
        few = int((size > 1e6 * max(float(top[-1]), usual)).sum())
        if few and few <= 4 and (worst is None or float(top[0]) > worst[1]):
            worst = (name, float(top[0]), few)
    return worst

"""Attention by another backend, at another length, or with another mask."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from ....detect.tensors.foreign_objects import getattr, isinstance
from ...replay.replay_step import ReplayChange
from ...replay.replayable import Replayable
from .flags import ATTENTION, BackendFlags

TILE = 128
"""Lengths that are multiples of this fill the tiles of every fused attention kernel."""


def backend_of(op: str) -> str | None:
    """The attention backend whose kernel this op is."""
    if "attention" not in op:
        return None
    return next((name for name in ATTENTION if name in op), None)


def without_backend(name: str) -> BackendFlags:
    """All backends but this one, as far as they were allowed; the plain one is allowed in any case."""
    return BackendFlags((ATTENTION[name], False), (ATTENTION["math"], True))


def only_backend(name: str) -> BackendFlags:
    return BackendFlags(*((switch, other == name) for other, switch in ATTENTION.items()))


class EagerAttention(ReplayChange):
    """The attention of a transformers model written out in torch, in place of a fused kernel."""

    def __init__(self) -> None:
        self._before: list[tuple[Any, Any]] = []

    def prepared(self, replayable: Replayable) -> None:
        if not self._before:
            for config in attention_configs(replayable.model):
                self._before.append((config, config._attn_implementation_internal))
                config._attn_implementation_internal = "eager"

    def undo(self, replayable: Replayable) -> None:
        for config, value in self._before:
            config._attn_implementation_internal = value
        self._before.clear()


def attention_configs(model: torch.nn.Module) -> list[Any]:
    """The configurations of a transformers model that choose a fused attention."""
    found = {id(c): c for module in model.modules() if (c := getattr(module, "config", None)) is not None}
    chosen = ((config, getattr(config, "_attn_implementation_internal", None)) for config in found.values())
    return [config for config, name in chosen if isinstance(name, str) and name != "eager"]


def _arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _as_mask(given: dict[str, Any], length: int, keys: int) -> torch.Tensor | None:
    """The mask that the call means, as a tensor; None where it masks nothing."""
    mask = given.get("attn_mask")
    if given.get("is_causal"):
        return torch.ones(length, keys, dtype=torch.bool, device=given["query"].device).tril()
    return mask if isinstance(mask, torch.Tensor) else None


def padded_attention(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The same attention at lengths that are multiples of TILE: added keys are masked, added queries cut off."""
    given = _arguments(args, kwargs)
    query, key = given["query"], given["key"]
    length, keys = query.shape[-2], key.shape[-2]
    more, more_keys = -length % TILE, -keys % TILE
    if not more and not more_keys:
        raise ValueError(f"the lengths are multiples of {TILE} already")
    mask = _as_mask(given, length, keys)
    if mask is None:
        mask = torch.ones(length, keys, dtype=torch.bool, device=query.device)
    mask = mask.expand(*mask.shape[:-2], length, keys)
    closed = False if mask.dtype is torch.bool else float("-inf")
    mask = F.pad(F.pad(mask, (0, more_keys), value=closed), (0, 0, 0, more), value=closed)
    if more:  # a row without any key is NaN: the added queries look at the first one
        mask = mask.clone()
        mask[..., length:, 0] = True if mask.dtype is torch.bool else 0.0
    given |= {"attn_mask": mask, "is_causal": False, "query": F.pad(query, (0, 0, 0, more))}
    given |= {name: F.pad(given[name], (0, 0, 0, more_keys)) for name in ("key", "value")}
    return func(**given)[..., :length, :]


def additive_mask(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The same attention with a mask of numbers in place of one of booleans: zero where it looks, else the lowest."""
    given = _arguments(args, kwargs)
    query = given["query"]
    mask = _as_mask(given, query.shape[-2], given["key"].shape[-2])
    if mask is None or mask.dtype is not torch.bool:
        raise ValueError("there is no mask of booleans")
    lowest = torch.finfo(query.dtype).min
    added = torch.zeros(mask.shape, dtype=query.dtype, device=query.device).masked_fill(~mask, lowest)
    return func(**(given | {"attn_mask": added, "is_causal": False}))

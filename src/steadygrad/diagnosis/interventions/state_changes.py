"""Weights, buffers and moments restored, reset or initialised before the step."""

from __future__ import annotations

from collections.abc import Collection

import torch

from ...detect.tensors.foreign_objects import getattr
from ...detect.tensors.readable_tensors import can_be_copied, write_values
from ...detect.tensors.unregistered_tensors import plain_tensors
from ..replay.replay_observation import named_state
from ..replay.replay_step import ReplayChange
from ..replay.replayable import Replayable


class Reverted(ReplayChange):
    """What was changed between the steps is restored as it was: once, before the step."""

    def __init__(self, replayable: Replayable, wanted: Collection[tuple[str, str]]) -> None:
        replayable.restore()
        self._old = {(k, n): t.detach().clone() for k, n, t in named_state(replayable) if (k, n) in wanted}
        self._done = False

    def prepared(self, replayable: Replayable) -> None:
        if self._done:
            return
        self._done = True
        for kind, name, tensor in named_state(replayable):
            old = self._old.get((kind, name))
            if old is not None and old.shape == tensor.shape:
                with torch.no_grad():
                    write_values(tensor.data, old)


class AsEarlier(Reverted):
    """Weights or buffers take the values that they had some steps before: once, before the step."""

    def __init__(self, replayable: Replayable, wanted: Collection[tuple[str, str]], back: int) -> None:
        earlier = replayable.facts.earlier(back) if replayable.facts.earlier is not None else None
        if earlier is None:
            raise ValueError(f"the state of {back} steps before is not kept")
        super().__init__(earlier, wanted)
        replayable.restore()


def is_second_moment(kind: str, name: str) -> bool:
    """Whether this is the optimizer's average or sum of squares, which is never negative."""
    return kind == "optimizer" and name.endswith(("_sq", "/square_avg", "/sum"))


def negative_second_moments(replayable: Replayable) -> list[str]:
    """Averages of squares that are negative somewhere before the step: rounded or mixed up when they were loaded."""
    replayable.restore()
    replayable.prepare()
    squares = [(n, t) for kind, n, t in named_state(replayable) if is_second_moment(kind, n) and t.is_floating_point()]
    return [name for name, tensor in squares if can_be_copied(tensor) and bool((tensor < 0).any())]


class ResetBadState(ReplayChange):
    """Bad entries of moments and buffers get the mean of the finite ones (one for a variance without any)."""

    def __init__(self, kinds: Collection[str], names: Collection[str] = ()) -> None:
        self.kinds, self.names = frozenset(kinds), frozenset(names)
        self._done = False

    def prepared(self, replayable: Replayable) -> None:
        if self._done:
            return
        self._done = True
        for kind, name, tensor in named_state(replayable):
            if kind not in self.kinds or not tensor.is_floating_point():
                continue
            bad = ~torch.isfinite(tensor)
            variance = "var" in name.rpartition(".")[2] or is_second_moment(kind, name)
            if variance:
                bad |= tensor < 0
            if not bool(bad.any()):
                continue
            sound = tensor[~bad]
            usual = float(sound.mean()) if sound.numel() else (1.0 if variance else 0.0)
            with torch.no_grad():
                tensor.data.masked_fill_(bad, usual)


class Initialise(ReplayChange):
    """Bad entries of a parameter or buffer are drawn small and random, as an initialisation would.

    Buffers of the same module go with it. An infinity that a running minimum or maximum starts at becomes one.
    """

    def __init__(self, kind: str, name: str) -> None:
        self.kind, self.name = kind, name
        self._done = False

    def prepared(self, replayable: Replayable) -> None:
        if self._done:
            return
        self._done = True
        plain = (("buffer", name, tensor) for name, tensor in plain_tensors(replayable.model))
        for kind, name, tensor in (*named_state(replayable), *plain):
            sibling = kind == "buffer" and name.rpartition(".")[0] == self.name.rpartition(".")[0]
            if kind != self.kind or not (name == self.name or sibling) or not tensor.is_floating_point():
                continue
            random = torch.Generator().manual_seed(0)
            fresh = torch.randn(tensor.shape, generator=random).to(tensor) * 0.02
            with torch.no_grad():
                fresh = torch.where(torch.isinf(tensor), -torch.sign(tensor), fresh)
                tensor.data.copy_(torch.where(tensor.abs() < 1e15, tensor, fresh))


class Redraw(ReplayChange):
    """Parameters are drawn anew, once: as their module draws them, or small and random where it does not say."""

    def __init__(self, names: Collection[str]) -> None:
        self.names = frozenset(names)
        self._done = False

    def prepared(self, replayable: Replayable) -> None:
        if self._done:
            return
        self._done = True
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(0)
            drawn: set[str] = set()
            for owner, module in replayable.model.named_modules():
                inside = {f"{owner}.{name}" if owner else name for name, _ in module.named_parameters(recurse=False)}
                if inside & self.names and callable(reset := getattr(module, "reset_parameters", None)):
                    reset()
                    drawn |= inside
            for name, parameter in replayable.model.named_parameters():
                if name in self.names - drawn:
                    parameter.data.normal_(std=0.02)


class TameOutliers(ReplayChange):
    """The few entries of one parameter that stand far beyond all others are set to zero."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._done = False

    def prepared(self, replayable: Replayable) -> None:
        if self._done:
            return
        self._done = True
        parameter = dict(replayable.model.named_parameters())[self.name]
        size = torch.nan_to_num(parameter.detach().to(torch.float64).abs(), nan=float("inf"))
        with torch.no_grad():
            parameter.data.masked_fill_(size > 1e6 * max(float(size.median()), 1e-6), 0.0)

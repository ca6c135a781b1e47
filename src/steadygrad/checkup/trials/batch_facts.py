"""What a probe of one batch found out about a model and its loss, as plain tensors on the host.

Which outputs count in the loss, and what they should have been, is read off the gradient of the loss with respect to
them: a cross-entropy pulls one class up and pushes all others down, however it was computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

SHIFTS = range(-2, 5)
MATCH, OTHERS = 0.95, 0.9
MIN_TARGETS = 8
_COVERED = 0.5
_FEW, _MAX_TAGS = 0.1, 64
_SURE = 3.0
"""A difference of two shares, in units of what chance gives them."""
_MISSED = 2
"""Targets that a shift must miss, in text that repeats, to be ruled out beside one that misses none."""


@dataclass(slots=True, kw_only=True)
class SequenceFacts:
    """Token ids that entered a model, and one of its outputs with a prediction for each position.

    Args:
        ids: (rows, positions), as they entered.
        counted: (rows, output positions), which of them the loss depends on.
        targets: the same shape, the class that the loss wants there; -1 where it is not known or not counted.
        changed: by position p, (rows, output positions): which outputs changed when the token at p was replaced.
    """

    ids: Tensor
    counted: Tensor
    targets: Tensor
    changed: dict[int, Tensor] = field(default_factory=dict)

    def shift(self) -> int | None:
        """s where every target is the token s positions after its output's; None where no s, or several, would do. In
        text that repeats another s may do nearly everywhere: then one that does everywhere is the one."""
        shares = {shift: share for shift in SHIFTS if (share := self._share(shift)) is not None}
        best = max(shares, key=lambda shift: shares[shift][0], default=None)
        if best is None or shares[best][0] < MATCH:
            return None
        exact = shares[best][0] == 1.0
        others = [share for shift, share in shares.items() if shift != best]
        return best if all(share < OTHERS or (exact and missed >= _MISSED) for share, missed in others) else None

    def _share(self, shift: int) -> tuple[float, int] | None:
        """The part of the targets that are the tokens at this shift, and how many are not."""
        outputs = self.targets.shape[1]
        places = torch.arange(outputs) + shift
        inside = (places >= 0) & (places < self.ids.shape[1])
        known = (self.targets >= 0) & inside
        if int(known.sum()) < max(MIN_TARGETS, _COVERED * int((self.targets >= 0).sum())):
            return None
        tokens = self.ids[:, places.clamp(0, self.ids.shape[1] - 1)]
        equal = (tokens == self.targets)[known]
        return float(equal.float().mean()), int((~equal).sum())

    def lookahead(self) -> int | None:
        """c where an output depends on the tokens up to c positions after it, and on no later ones; None where that
        differs from position to position, as in a model that sees everything."""
        found = set()
        for place, changed in self.changed.items():
            touched = changed.any(0).nonzero()
            if not len(touched):
                return None
            found.add(place - int(touched[0]))
        return found.pop() if len(found) == 1 and len(self.changed) > 1 else None

    def seen_targets(self, shift: int) -> float:
        """The share of the replaced tokens that changed the prediction whose target they are."""
        hit, asked = 0, 0
        for place, changed in self.changed.items():
            output = place - shift
            if 0 <= output < self.counted.shape[1]:
                rows = self.counted[:, output]
                hit, asked = hit + int(changed[rows, output].sum()), asked + int(rows.sum())
        return hit / asked if asked else 0.0


@dataclass(slots=True, kw_only=True)
class PaddingFacts:
    """(rows, positions) of which positions are padding, by whose word, and which of them the loss depends on."""

    padding: Tensor
    counted: Tensor
    name: str


@dataclass(slots=True, kw_only=True)
class BatchFacts:
    """All of it.

    Args:
        rows: how many rows the batch has.
        sequences: one for each output with a prediction for each position of the token ids.
        paddings: one for each output with a prediction for each position of padded inputs.
        others_changed: the share of the other rows whose outputs changed when one row was replaced; None where it was
            not tried.
        unlabelled: the share of the rows that have no label; None where the batch has no labels with an ignored value.
        tag_shift: by how many positions the targets are moved against the tags of the batch, in a model that sees both
            sides, though it is the tag's own token that tells it; 0 where that is not so.
    """

    rows: int = 0
    sequences: list[SequenceFacts] = field(default_factory=list)
    paddings: list[PaddingFacts] = field(default_factory=list)
    others_changed: float | None = None
    unlabelled: float | None = None
    tag_shift: int = 0


@dataclass(slots=True)
class UsedOutput:
    """An output that the loss depends on, and what its gradient says: see `SequenceFacts`."""

    shape: torch.Size
    counted: Tensor
    targets: Tensor
    classes_first: bool = False
    """Whether it is (rows, classes, positions), as convolutions give it."""
    image: tuple[int, ...] = ()
    """Height and width of (rows, classes, height, width); `counted` has a place for each pixel. Empty for others."""

    @staticmethod
    def of(output: Tensor, gradient: Tensor) -> UsedOutput:
        """Row by row, because a vocabulary is large; only the answers leave the device."""
        counted = torch.stack([counted_outputs(row) for row in gradient]).cpu()
        no_classes = output.dim() != 3
        targets = [torch.full(row.shape, -1) if no_classes else wanted_classes(row.float()) for row in gradient]
        return UsedOutput(output.shape, counted, torch.stack(targets).cpu())

    @staticmethod
    def both_ways(output: Tensor, gradient: Tensor) -> list[UsedOutput]:
        """As it is, and with classes before positions, where it may be either."""
        found = [UsedOutput.of(output, gradient)]
        if gradient.dim() == 3:
            turned = UsedOutput.of(output.transpose(1, 2), gradient.transpose(1, 2))
            turned.shape, turned.classes_first = output.shape, True
            found.append(turned)
        if gradient.dim() == 4:
            pixels = torch.stack([(row != 0).any(0).flatten() for row in gradient]).cpu()
            found.append(UsedOutput(output.shape, pixels, pixels.new_zeros(len(pixels), 0), image=(*output.shape[2:],)))
        return found

    def of_rows(self, count: int) -> UsedOutput:
        """The first rows of it."""
        shape = torch.Size((count, *self.shape[1:]))
        return UsedOutput(shape, self.counted[:count], self.targets[:count], self.classes_first, self.image)

    @property
    def positions(self) -> int:
        return self.shape[2] if self.classes_first else self.shape[1]


def counted_outputs(gradient: Tensor) -> Tensor:
    """The positions of a row at which the loss depends on the output."""
    return (gradient != 0).flatten(1).any(-1) if gradient.dim() > 1 else gradient != 0


def wanted_classes(gradient: Tensor) -> Tensor:
    """The class that a cross-entropy wants at each position: the one that its gradient pulls up; -1 where the gradient
    is not that of a cross-entropy with one right class."""
    if gradient.shape[-1] < 2:
        return torch.full(gradient.shape[:-1], -1, device=gradient.device)
    (lowest, following), (wanted, _) = (each.unbind(-1) for each in gradient.topk(2, largest=False))
    one = (lowest < 0) & (following > lowest / 3)  # label smoothing pulls at the others, too, and less
    balanced = gradient.sum(-1).abs() <= 1e-3 * gradient.abs().sum(-1).clamp(min=1e-30)
    return torch.where(one & balanced, wanted, -1)


def padded_positions(inputs: Tensor, others: Mapping[str, Tensor]) -> tuple[Tensor, str] | None:
    """Which positions of (rows, positions, ...) are padding, and by whose word: a mask or a vector of lengths that
    leaves out positions with one value (in all rows, or in each row its own, as where the last one is carried on), or
    a token that fills the ends of rows and is nowhere else. A mask is not padded by itself."""
    if inputs.dtype is torch.bool or bool(((inputs == 0) | (inputs == 1)).all()):
        return None
    for name, each in others.items():
        extra = each.shape[1] - inputs.shape[1] if each.dim() == 2 else -1
        if 0 <= extra <= 1 and len(each) == len(inputs):
            masked = _by_mask(each[:, : inputs.shape[1]])
            if masked is not None and (_is_constant(inputs[masked]) or _is_constant_in_rows(inputs, masked)):
                return masked, name
    tail = _by_tail(inputs)
    if tail is None:
        return None
    for name, each in others.items():
        lengths = each if each.shape == inputs.shape[:1] and not each.is_floating_point() else None
        if lengths is not None and torch.equal(torch.arange(inputs.shape[1])[None] >= lengths[:, None], tail):
            return tail, name
    return (tail, f"token {int(inputs[tail][0])}") if inputs.dim() == 2 and not inputs.is_floating_point() else None


def padded_canvas(images: Tensor, others: Mapping[str, Tensor]) -> tuple[Tensor, str] | None:
    """Which pixels of (rows, channels, height, width) lie outside of the pictures: a table has a height and a width for
    each row, all that lies to the right of it or below has one value, and hardly any other pixel has that value."""
    height, width = images.shape[2:]
    pixels = images.movedim(1, -1)
    for name, each in others.items():
        if each.shape != (len(images), 2) or each.is_floating_point() or each.dtype is torch.bool:
            continue
        for sizes in (each, each.flip(1)):
            high, wide = sizes[:, 0, None, None], sizes[:, 1, None, None]
            if bool((sizes < 1).any()) or bool((high > height).any()) or bool((wide > width).any()):
                continue
            outside = (torch.arange(height)[None, :, None] >= high) | (torch.arange(width)[None, None] >= wide)
            fill = pixels[outside]
            if not len(fill) or not _is_constant(fill):
                continue
            if float((pixels[~outside] == fill[0]).all(-1).float().mean()) < _FEW:
                return outside, name
    return None


def shift_of_tags(ids: Tensor, targets: Tensor, others: Mapping[str, Tensor]) -> int:
    """By how many positions targets are moved against tags that are told by the token at their own place, and not by
    the one at the place of the prediction; 0 where there are no such tags."""
    for tags in others.values():
        if tags.shape != ids.shape or tags.is_floating_point() or tags.dtype is torch.bool or torch.equal(tags, ids):
            continue
        for shift in (1, -1):
            moved = tags.roll(-shift, 1)[:, : targets.shape[1]]
            known = targets >= 0
            known[:, 0] &= shift > 0
            known[:, ids.shape[1] - 1 :] = False
            if int(known.sum()) < MIN_TARGETS or not torch.equal(moved[known], targets[known].to(moved.dtype)):
                continue
            own, here = (tokens[:, : targets.shape[1]][known] for tokens in (ids.roll(-shift, 1), ids))
            (told, number), (by_chance, _) = _told(own, targets[known]), _told(here, targets[known])
            if number and told >= _COVERED and told - by_chance > _SURE / number**0.5:
                return shift
    return 0


def _told(tokens: Tensor, tags: Tensor) -> tuple[float, int]:
    """How often a tag is the most frequent one of the other places with the same token, and at how many places there
    are others."""
    kinds, tokens = torch.unique(tokens, return_inverse=True)
    called, tags = torch.unique(tags, return_inverse=True)
    if len(called) > _MAX_TAGS:
        return 0.0, 0
    pairs = torch.zeros(len(kinds), len(called))
    pairs.index_put_((tokens, tags), torch.ones(len(tokens)), accumulate=True)
    others, places = pairs[tokens], torch.arange(len(tokens))
    others[places, tags] -= 1
    several = others.sum(1) > 0
    right = others[places, tags] == others.amax(1)
    return (float(right[several].float().mean()), int(several.sum())) if bool(several.any()) else (0.0, 0)


def _is_constant(values: Tensor) -> bool:
    return bool((values == values[:1]).all())


def _is_constant_in_rows(inputs: Tensor, masked: Tensor) -> bool:
    """Whether each row has one value at its masked positions, and several of them."""
    runs = [row[places] for row, places in zip(inputs, masked, strict=True) if int(places.sum()) > 1]
    return bool(runs) and all(map(_is_constant, runs))


def _by_mask(mask: Tensor) -> Tensor | None:
    """The zeros of a mask whose rows are ones followed by zeros, or all zeros followed by ones; None for others."""
    values = mask.to(torch.float32)
    if not bool(((values == 0) | (values == 1)).all()):
        return None
    kept = values == 1
    changes = (kept[:, 1:] != kept[:, :-1]).sum(1)
    if bool((changes > 1).any()) or not bool(kept.any(1).all()) or bool(kept.all()):
        return None
    return ~kept if bool(kept[:, 0].all()) or bool(kept[:, -1].all()) else None


def _by_tail(inputs: Tensor) -> Tensor | None:
    """Runs of one token, or of zeros, at the ends of rows, of different lengths, with none of it anywhere else."""
    token = inputs[:, -1].mode().values if inputs.dim() == 2 else inputs.new_zeros(())
    same = (inputs == token).flatten(2).all(-1) if inputs.dim() > 2 else inputs == token
    tail = same.flip(1).int().cumprod(1).flip(1).bool()
    lengths = tail.sum(1)
    if int((lengths > 1).sum()) < 2 or int(lengths.amin()) == int(lengths.amax()) or bool(tail.all(1).any()):
        return None
    return tail if bool((same == tail).all()) else None

"""The pool of pinned memory, with ordinary memory in place of it: only where the bytes lie differs."""

from __future__ import annotations

import pytest
import torch

from steadygrad.engine.state.pinned_memory import ALIGNED, PinnedArena, PinnedPool


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(7),
        torch.randn(3, 5, dtype=torch.float64),
        torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
        torch.randn(6, 8)[::2, ::3],
        torch.randn(4, 5).t(),
        torch.tensor(2.5),
        torch.empty(0, 3),
        torch.randn(3, dtype=torch.complex64),
        torch.tensor([True, False]),
        torch.randn(5).to(torch.bfloat16),
    ],
    ids=lambda tensor: f"{tuple(tensor.shape)}-{str(tensor.dtype)[6:]}",
)
def test_a_copy_has_the_values_and_the_layout_torch_gives_a_copy(tensor: torch.Tensor) -> None:
    _, place = PinnedPool(pin=False).like(tensor)
    place.copy_(tensor)
    assert torch.equal(place, tensor)
    assert place.dtype is tensor.dtype
    assert place.stride() == tensor.clone().stride()


def test_chunks_in_use_never_overlap_and_given_back_ones_are_used_again() -> None:
    pool = PinnedPool(pin=False)
    taken = [pool.like(torch.full((size,), float(size))) for size in (1, 100, 128, 129, 1000, 1000, 1000, 1000, 1000)]
    for number, (_, place) in enumerate(taken):
        place.fill_(float(number))
    assert [set(place.tolist()) for _, place in taken] == [{float(number)} for number in range(len(taken))]
    addresses = {chunk.data_ptr() for chunk, _ in taken if chunk.numel() == 4096}
    pool.give_back([chunk for chunk, _ in taken])
    again = [pool.like(torch.empty(size))[0] for size in (600, 700, 800, 900, 1000)]
    assert {chunk.data_ptr() for chunk in again} <= addresses


def test_memory_is_made_in_slabs_that_double() -> None:
    pool = PinnedPool(pin=False)
    chunks = [pool.like(torch.empty(1000))[0] for _ in range(64)]
    slabs = {chunk.untyped_storage().data_ptr() for chunk in chunks}
    assert len(slabs) == 7  # 1, 1, 2, 4, 8, 16, 32


def test_a_chunk_used_again_for_another_tensor_has_that_ones_shape() -> None:
    pool = PinnedPool(pin=False)
    for tensor in (torch.randn(4, 6), torch.randn(4, 6), torch.randn(6, 4), torch.arange(24), torch.randn(6, 4).t()):
        chunk, place = pool.like(tensor)
        place.copy_(tensor)
        assert (place.dtype, place.shape, place.stride()) == (tensor.dtype, tensor.shape, tensor.clone().stride())
        assert torch.equal(place, tensor)
        pool.give_back([chunk])


def test_an_arena_gives_every_tensor_a_separate_place_in_few_slabs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("steadygrad.engine.state.pinned_memory._ARENA_SLAB", 1 << 20)
    torch.manual_seed(0)
    kinds = [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.float64]
    tensors = [
        (torch.randn(int(torch.randint(0, 3000, ())), 3) * 9).to(kinds[number % len(kinds)]) for number in range(120)
    ]
    tensors += [torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last), torch.tensor(1.5), torch.randn(70_000)]
    arena = PinnedArena(sum(t.numel() * t.element_size() + ALIGNED for t in tensors), pin=False)
    places = [arena.like(tensor) for tensor in tensors]
    for place, tensor in zip(places, tensors, strict=True):
        place.copy_(tensor)
    for place, tensor in zip(places, tensors, strict=True):
        assert torch.equal(place, tensor)
        assert place.stride() == tensor.clone().stride()
    slabs = {place.untyped_storage().data_ptr(): place.untyped_storage().nbytes() for place in places if place.numel()}
    needed = sum(t.numel() * t.element_size() for t in tensors)
    assert len(slabs) < len(tensors) / 4
    assert needed <= sum(slabs.values()) < 1.6 * needed


def test_an_arena_that_was_made_too_small_grows() -> None:
    arena = PinnedArena(0, pin=False)
    first, second = arena.like(torch.empty(1000)), arena.like(torch.empty(5000))
    first.fill_(1.0)
    second.fill_(2.0)
    assert float(first.sum()) == 1000.0

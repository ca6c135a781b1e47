"""What is kept of a tensor's content shows a write that autograd does not count, at its beginning and at its end."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from steadygrad.detect.tensors.kept_content import ContentMarks, RefilledMemory


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1, 3, 8, 9, 17, 33, 64, 65, 129, 1001, 4096])
def test_a_write_past_autograd_to_the_first_or_last_number_is_seen(size: int, dtype: torch.dtype) -> None:
    memory = torch.zeros(size + 1, dtype=dtype)
    for tensor in (memory[:size], memory[1:]):  # the second begins at an odd address
        for place in (0, -1):
            before = ContentMarks([tensor])
            assert before == ContentMarks([tensor])
            tensor.data[place] += 1
            assert before != ContentMarks([tensor])


def test_tensors_made_in_inference_mode_are_marked_beside_others() -> None:
    with torch.inference_mode():
        silent = torch.zeros(20)
    counted = torch.zeros(20)
    before = ContentMarks([silent, counted])
    assert before == ContentMarks([silent, counted])
    counted.add_(1)
    assert before != ContentMarks([silent, counted])


def test_a_batch_that_comes_again_is_kept_by_what_it_was_just_seen_to_hold() -> None:
    refilled, batch = RefilledMemory(), [torch.zeros(100), torch.zeros(100)]
    first = refilled.keep(batch)
    assert not refilled.look(list(batch))
    again = refilled.keep(list(batch))
    assert not again.written
    batch[0].data[0] = 1.0
    assert first.written
    assert again.written
    assert refilled.look(list(batch))
    assert not refilled.keep(list(batch)).written


def test_memory_that_was_refilled_is_seen_behind_a_tensor_that_was_not() -> None:
    refilled = RefilledMemory()
    same, other = torch.zeros(100), torch.zeros(100)
    kept = [refilled.keep([tensor]) for tensor in (same, other)]
    other.data.fill_(1.0)

    def views(tensor: Tensor) -> Tensor:
        return tensor.view(-1)

    assert refilled.look([views(same), views(other)])
    assert len(kept) == 2

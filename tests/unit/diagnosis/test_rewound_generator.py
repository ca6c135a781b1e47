"""A generator's earlier states are computed from its later ones, to the bit."""

from __future__ import annotations

import pytest
import torch

from steadygrad.diagnosis.replay.rewound_generator import drawn_between, state_before


@pytest.mark.parametrize("earlier", [1, 5, 600, 623, 624, 625, 3000])
@pytest.mark.parametrize("count", [1, 20, 604, 700, 5000])
def test_a_rewound_generator_draws_the_same_numbers_again(earlier: int, count: int) -> None:
    generator = torch.Generator().manual_seed(7)
    torch.rand(earlier, generator=generator)
    before = generator.get_state()
    numbers = torch.rand(count, generator=generator)
    after = generator.get_state()
    drawn = drawn_between(before, after)
    assert drawn is not None
    generator.set_state(state_before(after, drawn))
    assert torch.equal(torch.rand(count, generator=generator), numbers)
    assert torch.equal(generator.get_state(), after)


def test_more_numbers_than_can_be_counted_have_no_count() -> None:
    generator = torch.Generator().manual_seed(7)
    before = generator.get_state()
    torch.rand(100_000, generator=generator)
    assert drawn_between(before, generator.get_state()) is None

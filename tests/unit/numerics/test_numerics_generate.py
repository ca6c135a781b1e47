"""The processors inside a real `generate` of a tiny model: the crash of the plain call, and what it is with them."""

from __future__ import annotations

import math

import pytest
import torch

from steadygrad.numerics import NumericalStabilityLogitsProcessor, TemperatureLogitsWarper
from steadygrad.numerics.published_findings import Board

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, bos_token_id=1, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


def generate(model: torch.nn.Module, *processors: object, **kwargs: object) -> torch.Tensor:
    torch.manual_seed(5)
    ids = torch.tensor([[1, 5, 9], [1, 6, 7]])
    listed = transformers.LogitsProcessorList(processors)
    settings = {"do_sample": True, "max_new_tokens": 6, "min_new_tokens": 6, **kwargs}
    return model.generate(ids, attention_mask=torch.ones_like(ids), logits_processor=listed, **settings)  # type: ignore[operator, no-any-return]


def test_a_healthy_model_samples_the_same_tokens_with_and_without(model: torch.nn.Module, board: Board) -> None:
    ours = (NumericalStabilityLogitsProcessor(report_to=board), TemperatureLogitsWarper(0.8, report_to=board))
    assert torch.equal(generate(model, *ours), generate(model, temperature=0.8))
    for kwargs in ({"do_sample": False}, {"do_sample": False, "num_beams": 2}):
        assert torch.equal(generate(model, ours[0], **kwargs), generate(model, **kwargs))
    assert ours[0].num_calls > 12
    assert board.take() == ()


def test_a_poisoned_model_crashes_without_and_is_reported_with(model: torch.nn.Module, board: Board) -> None:
    head = model.get_output_embeddings().weight  # type: ignore[operator]
    before = head.detach().clone()
    try:
        with torch.no_grad():
            head[11] = math.nan
        with pytest.raises(RuntimeError, match=r"inf.*nan|nan.*inf"):
            generate(model)
        made = generate(model, NumericalStabilityLogitsProcessor(report_to=board))
    finally:
        with torch.no_grad():
            head.copy_(before)
    assert made.shape == (2, 9)
    assert not (made[:, 3:] == 2).any(), "the end was forbidden by min_new_tokens and stays so"
    assert not (made[:, 3:] == 11).any()
    (found,) = board.take()
    assert (found.code, found.evidence["num_nan"], found.evidence["num_calls"]) == ("SY501", 12, 6)

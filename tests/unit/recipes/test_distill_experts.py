"""A split layer is the dense one until a router moves, and nothing but routers can move."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")
from recipes.distill.experts import balanced_groups, reset_routers, routed_layers, split_into_experts
from transformers import LlamaConfig, LlamaForCausalLM

IDS = [torch.randint(0, 96, (2, 24), generator=torch.Generator().manual_seed(number)) for number in range(3)]


@pytest.fixture(scope="module")
def dense() -> Any:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=96, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=2, initializer_range=0.2,
        )
    ).eval()  # fmt: skip


def split(dense: Any, **how: Any) -> Any:
    model = copy.deepcopy(dense)
    split_into_experts(model, IDS, **{"experts": 4, "top_k": 2, "shared": 0.5, **how})
    return model


def test_with_every_expert_at_work_the_model_says_what_the_dense_one_said(dense: Any) -> None:
    torch.testing.assert_close(split(dense, top_k=4)(IDS[0]).logits, dense(IDS[0]).logits, rtol=1e-4, atol=1e-4)


def test_more_experts_at_work_are_nearer_to_the_dense_model(dense: Any) -> None:
    wanted = dense(IDS[0]).logits
    gaps = [float((split(dense, top_k=k)(IDS[0]).logits - wanted).norm().detach()) for k in (1, 2, 3)]
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[-1] > 0


def test_a_fitted_router_picks_better_than_one_that_points_the_other_way(dense: Any) -> None:
    wanted, model = dense(IDS[0]).logits, split(dense)
    fitted = float((model(IDS[0]).logits - wanted).norm().detach())
    with torch.no_grad():
        for layer in routed_layers(model):
            layer.router.weight.neg_()
            layer.anchor.neg_()
    assert fitted < float((model(IDS[0]).logits - wanted).norm().detach())


def test_only_the_routers_learn_and_all_of_them_do(dense: Any) -> None:
    model = split(dense)
    model(IDS[0]).logits.square().mean().backward()
    learning = {name for name, p in model.named_parameters() if p.requires_grad}
    assert learning == {f"model.layers.{number}.mlp.router.weight" for number in range(2)}
    for layer in routed_layers(model):
        gradient = layer.router.weight.grad
        assert gradient is not None
        assert bool(gradient.isfinite().all())
        assert float(gradient.norm()) > 0


def test_a_router_that_moved_changes_the_model_and_can_be_restored(dense: Any) -> None:
    model = split(dense)
    before = model(IDS[0]).logits.detach()
    with torch.no_grad():
        for layer in routed_layers(model):
            layer.router.weight.add_(0.05 * torch.randn_like(layer.router.weight))
    assert not torch.equal(model(IDS[0]).logits, before)
    reset_routers(model)
    assert torch.equal(model(IDS[0]).logits, before)


def test_groups_are_of_one_size_and_keep_likes_together() -> None:
    generator = torch.Generator().manual_seed(3)
    directions = torch.eye(4).repeat_interleave(8, dim=0)
    groups = balanced_groups(directions + 0.01 * torch.randn(32, 4, generator=generator), 4, generator=generator)
    assert groups.bincount(minlength=4).tolist() == [8, 8, 8, 8]
    with pytest.raises(ValueError, match="experts of one size"):
        balanced_groups(directions[:30], 4, generator=generator)

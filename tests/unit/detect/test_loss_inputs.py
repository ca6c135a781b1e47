"""Rules over what enters a loss: each sees its mistake in a real graph, and nothing in what looks like it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from steadygrad.detect.graph.run_graph_rules import examine_graph


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def codes(loss: Tensor, num_rows: int | None = None) -> list[str]:
    found = examine_graph(loss, parameters_in_optimizers=set(), named_parameters={}, num_rows=num_rows)
    return [finding.code for finding in found]


def _scores(columns: int = 4) -> Tensor:
    scores: Tensor = nn.Linear(6, columns)(torch.randn(8, 6))
    return scores


_CLASSES = torch.tensor([0, 1, 2, 3, 0, 1, 2, 3])
_SIGNS = torch.tensor([-1.0, 1.0] * 4)
_SOFT = torch.softmax(torch.randn(8, 4, generator=torch.Generator().manual_seed(0)), -1)


@pytest.mark.parametrize(
    "loss",
    [
        lambda: F.nll_loss(_scores(), _CLASSES),
        lambda: F.nll_loss(nn.Linear(6, 4)(torch.randn(8, 5, 6)).transpose(1, 2), torch.zeros(8, 5, dtype=torch.long)),
        lambda: F.nll_loss(nn.Linear(6, 4, bias=False)(torch.randn(8, 6)), _CLASSES),
        lambda: F.kl_div(_scores(), _SOFT, reduction="batchmean"),
        lambda: F.binary_cross_entropy_with_logits(_scores(1).squeeze(1), _SIGNS),
        lambda: F.binary_cross_entropy_with_logits(_scores(1).squeeze(1), _SIGNS, reduction="none").mean(),
        lambda: F.binary_cross_entropy_with_logits(_scores(), torch.full((8, 4), 255.0)),
    ],
)
def test_a_loss_that_falls_without_limit_is_seen(loss: Any) -> None:
    assert codes(loss()) == ["SY456"]


def _cross_entropy_by_hand() -> Tensor:
    scores = _scores()
    return F.nll_loss(scores, _CLASSES) + torch.logsumexp(scores, 1).mean()


def _masked() -> Tensor:
    each = F.binary_cross_entropy_with_logits(_scores(1).squeeze(1), _SIGNS, reduction="none")
    return each[_SIGNS >= 0].mean()


def _densities() -> Tensor:
    mean, scale = _scores(), torch.tensor(0.1)
    density = torch.distributions.Normal(mean, scale).log_prob(torch.zeros(8, 4))
    return F.nll_loss(torch.logsumexp(density, -1, keepdim=True), torch.zeros(8, dtype=torch.long))


@pytest.mark.parametrize(
    "loss",
    [
        lambda: F.cross_entropy(_scores(), _CLASSES),
        lambda: F.nll_loss(F.log_softmax(_scores(), 1), _CLASSES),
        _cross_entropy_by_hand,
        _densities,
        _masked,
        lambda: F.kl_div(F.log_softmax(_scores(), -1), _SOFT, reduction="batchmean"),
        lambda: F.kl_div(F.log_softmax(_scores(), -1), _SOFT.log(), reduction="sum", log_target=True),
        lambda: (torch.ones(8, 4) - _SOFT * F.log_softmax(_scores(), -1)).mean(),
        lambda: F.binary_cross_entropy_with_logits(_scores(), 0.7 + 0.5 * torch.rand(8, 4)),
        lambda: F.binary_cross_entropy_with_logits(_scores(1).squeeze(1), _SIGNS, weight=_SIGNS.clamp(min=0)),
        lambda: F.soft_margin_loss(_scores(1).squeeze(1), _SIGNS),
        lambda: F.hinge_embedding_loss(_scores(1).squeeze(1), _SIGNS),
        lambda: F.nll_loss(_scores(1), torch.zeros(8, dtype=torch.long)),
        lambda: -(_SIGNS * _scores(1).squeeze(1)).mean(),
    ],
)
def test_other_likelihoods_divergences_and_labels_are_healthy(loss: Any) -> None:
    assert codes(loss()) == []


def test_probabilities_in_a_divergence_are_seen() -> None:
    assert codes(F.kl_div(torch.softmax(_scores(), -1), _SOFT, reduction="batchmean")) == ["SY440"]
    assert codes(F.kl_div(torch.softmax(_scores(), -1).log(), _SOFT, reduction="batchmean")) == []
    assert codes((1 - (_SOFT * torch.softmax(_scores(), -1)).sum(-1)).mean()) == []


_STANDARD = torch.randn(8, 4, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    "loss",
    [
        lambda: F.mse_loss(torch.sigmoid(_scores()), _STANDARD),
        lambda: ((torch.sigmoid(_scores()) - _STANDARD) ** 2).mean(),
        lambda: (_STANDARD - torch.sigmoid(_scores())).abs().mean(),
        lambda: F.smooth_l1_loss(torch.tanh(_scores()), 100 + 50 * _STANDARD),
        lambda: F.mse_loss(torch.relu(_scores()), _STANDARD),
        lambda: F.mse_loss(torch.softmax(_scores(), -1).reshape(4, 8), 40 * _STANDARD.reshape(4, 8)),
    ],
)
def test_targets_that_an_activation_cannot_reach_are_seen(loss: Any) -> None:
    assert codes(loss()) == ["SY457"]


def _few_wild() -> Tensor:
    targets = 0.5 * torch.tanh(_STANDARD)
    targets[0, 0] = 100.0
    return targets


@pytest.mark.parametrize(
    "loss",
    [
        lambda: F.mse_loss(_scores(), _STANDARD),
        lambda: F.mse_loss(torch.tanh(_scores()), torch.tanh(3 * _STANDARD) + 0.05 * torch.randn(8, 4)),
        lambda: F.mse_loss(torch.tanh(_scores()), torch.sign(_STANDARD)),
        lambda: F.smooth_l1_loss(torch.tanh(_scores()), _few_wild()),
        lambda: F.mse_loss(torch.sigmoid(_scores()) * 6 - 3, _STANDARD),
        lambda: F.mse_loss(torch.relu(_scores()), _STANDARD.abs()),
        lambda: F.mse_loss(torch.sigmoid(_scores()), torch.ones(8, 4)),
        lambda: F.mse_loss(torch.sigmoid(_scores()), _STANDARD, reduction="none")[_STANDARD > 0].mean(),
        lambda: (F.mse_loss(torch.sigmoid(_scores()), _STANDARD, reduction="none") * (_STANDARD > 0)).mean(),
        lambda: torch.relu(1 - _SIGNS * _scores(1).squeeze(1)).pow(2).mean(),
    ],
)
def test_targets_within_reach_or_under_a_mask_are_healthy(loss: Any) -> None:
    assert codes(loss()) == []


def _policy(*, old: str) -> Tensor:
    policy, states = nn.Linear(6, 4), torch.randn(8, 6)
    now = F.log_softmax(policy(states), -1)[:, 0]
    other = policy(states + 0.1) if old == "moved" else policy(states)
    if old == "copy":
        other = copy.deepcopy(policy)(states)
    before = F.log_softmax(other, -1)[:, 0]
    ratio = torch.exp(now - (before.detach() if old == "detached" else before))
    return (ratio * _STANDARD[:, 0]).mean()


def _view_error(*, same: bool) -> Tensor:
    layer, rows = nn.Linear(6, 4), torch.randn(8, 6)
    return F.mse_loss(layer(rows), layer(rows if same else rows + 0.1))


def test_values_that_are_compared_with_themselves_are_seen_where_both_sides_have_a_gradient() -> None:
    assert codes(_policy(old="same")) == codes(_view_error(same=True)) == ["SY458"]
    assert codes(_policy(old="detached")) == codes(_policy(old="moved")) == codes(_policy(old="copy")) == []
    assert codes(_view_error(same=False)) == []


def _attention(dim: int, *, over: int = 1, shape: tuple[int, int] = (8, 5), matmul: bool = False) -> Tensor:
    score, value, head = nn.Linear(6, 1), nn.Linear(6, 6), nn.Linear(6, 2)
    inputs = torch.randn(*shape, 6)
    if matmul:
        weights = torch.softmax(value(inputs) @ inputs.transpose(1, 2), dim)
        return head(weights @ inputs).pow(2).mean()
    return head((torch.softmax(score(inputs), dim) * value(inputs)).sum(over)).pow(2).mean()


@pytest.mark.parametrize("matmul", [False, True])
def test_attention_weights_over_the_rows_of_a_batch_are_seen(matmul: bool) -> None:
    assert codes(_attention(0, matmul=matmul), num_rows=8) == ["SY459"]
    assert codes(_attention(1, matmul=matmul), num_rows=8) == []


def _slots() -> Tensor:
    """Slots compete for each position: normalised over the slots, summed over the positions."""
    inputs, slots, head = torch.randn(8, 5, 6), nn.Parameter(torch.randn(3, 6)), nn.Linear(6, 2)
    weights = torch.softmax(inputs @ slots.t(), -1)
    return head(weights.transpose(1, 2) @ inputs).pow(2).mean()


@pytest.mark.parametrize(
    "loss",
    [
        lambda: _attention(0, over=0),
        lambda: _attention(0, shape=(8, 8)),
        lambda: _attention(-1),
        _slots,
        lambda: (torch.softmax(_scores(), 0) * _SOFT).sum(1).mean(),
        lambda: F.cross_entropy((_scores() @ _SOFT.t()).t(), torch.arange(8)),
    ],
)
def test_other_dimensions_of_a_softmax_are_healthy(loss: Any) -> None:
    assert codes(loss(), num_rows=8) == []

"""A dense feed-forward layer split into experts, and the router that weighs and chooses among them.

The neurons of a layer act(gate x) * (up x) -> down that matter most are shared: they always work. The others are put
into groups that listen to the same things. Each group is an expert, and the layer's output is the sum of all. The
router picks `top_k` experts for a token; one that is not picked adds what it adds on average. What the router was at
the beginning is kept beside it as the anchor, and a picked expert counts p / p_anchor: exactly 1 as long as the router
has not moved. So with every expert picked the layer is the dense one to rounding.

Shapes: N tokens, D width of the model, F neurons, E experts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

_MOST = 4.0
"""An expert counts at most so many times what it did at the anchor."""


class RoutedFeedForward(nn.Module):
    """In the place of a dense layer. All experts are computed, and those not picked count zero: the same sum."""

    anchor: Tensor
    idle: Tensor

    def __init__(self, dense: Any, *, groups_F: Tensor, router_ED: Tensor, mean_F: Tensor, top_k: int) -> None:
        super().__init__()
        order = groups_F.argsort(stable=True)
        with torch.no_grad():  # neurons of one expert side by side
            for name, dim in (("gate_proj", 0), ("up_proj", 0), ("down_proj", 1)):
                weight = dense.get_submodule(name).weight
                weight.copy_(weight.index_select(dim, order.to(weight.device)))
        self.dense, self.top_k = dense, top_k
        experts, width = router_ED.shape
        self.num_shared = int((groups_F < 0).sum())
        self.size = (len(groups_F) - self.num_shared) // experts
        self.router = nn.Linear(width, experts, bias=False, dtype=torch.float32)
        with torch.no_grad():
            self.router.weight.copy_(router_ED)
        self.register_buffer("anchor", router_ED.detach().clone().float())
        weight = dense.get_submodule("gate_proj").weight
        self.register_buffer("idle", mean_F[order][self.num_shared :].reshape(experts, -1).to(weight.dtype))
        self.notes: list[tuple[Tensor, Tensor]] = []
        """Of the forwards since it was emptied: which experts were picked, as ones, and the router's log p. Whoever
        asks empties it; a list, so that the graph lives no longer than the one who asked."""
        self.takes_notes = False

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):  # so few numbers that float32 costs nothing
            flat = x.float()
            log_p = self.router(flat).log_softmax(-1)
            log_p_anchor = nn.functional.linear(flat, self.anchor).log_softmax(-1)
            picked = torch.zeros_like(log_p).scatter_(-1, log_p.topk(self.top_k, dim=-1).indices, 1.0)
            weight = picked * torch.exp((log_p - log_p_anchor).clamp(max=float(torch.tensor(_MOST).log())))
        if self.takes_notes:
            self.notes.append((picked, log_p))
        dense = self.dense
        hidden = dense.act_fn(dense.gate_proj(x)) * dense.up_proj(x)
        shared, routed = hidden.split([self.num_shared, hidden.shape[-1] - self.num_shared], dim=-1)
        experts = routed.reshape(*routed.shape[:-1], -1, self.size) * weight.to(hidden.dtype).unsqueeze(-1)
        experts = experts + self.idle.to(hidden.dtype) * (1 - picked).to(hidden.dtype).unsqueeze(-1)
        output: Tensor = dense.down_proj(torch.cat([shared, experts.flatten(-2)], dim=-1))
        return output


def reset_routers(model: nn.Module) -> None:
    """The routers as they were when the experts were made."""
    with torch.no_grad():
        for layer in routed_layers(model):
            layer.router.weight.copy_(layer.anchor)


def routed_layers(model: nn.Module) -> Iterator[RoutedFeedForward]:
    for module in model.modules():
        if isinstance(module, RoutedFeedForward):
            yield module


def split_into_experts(
    model: nn.Module, batches: Sequence[Tensor], *, experts: int, top_k: int, shared: float = 0.5, seed: int = 0
) -> None:
    """Replace every feed-forward layer by a routed one, in place; freeze everything but the routers.

    The batches (token numbers) show which neurons matter for which inputs. Each router is a least-squares fit of how
    much every expert adds to the layer's output. Nothing is learnt from what the text says next.
    """
    if not 1 <= top_k <= experts:
        raise ValueError(f"top_k={top_k} of {experts} experts cannot be picked")
    layers: list[Any] = [
        module for module in model.modules() if hasattr(module, "gate_proj") and hasattr(module, "down_proj")
    ]
    parents = {id(child): (parent, name) for parent in model.modules() for name, child in parent.named_children()}
    inputs = _inputs_of(model, layers, batches)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for number, (layer, x_ND) in enumerate(zip(layers, inputs, strict=True)):
        weight = layer.get_submodule("gate_proj").weight.detach().float()
        generator = torch.Generator().manual_seed(seed + number)
        hidden_NF = _hidden(layer, x_ND)
        groups = torch.full((len(weight),), -1)
        rest = _least_important(layer, hidden_NF, experts * round(len(weight) * (1 - shared) / experts)).cpu()
        groups[rest] = balanced_groups(weight.cpu()[rest], experts, generator=generator)
        router = _fit_router(layer, x_ND, hidden_NF, groups.to(weight.device), experts)
        parent, name = parents[id(layer)]
        routed = RoutedFeedForward(
            layer, groups_F=groups, router_ED=router, mean_F=hidden_NF.mean(0).cpu(), top_k=top_k
        )
        setattr(parent, name, routed.to(weight.device))


@torch.no_grad()
def _inputs_of(model: nn.Module, layers: Sequence[nn.Module], batches: Sequence[Tensor]) -> list[Tensor]:
    seen: list[list[Tensor]] = [[] for _ in layers]
    hooks = [
        layer.register_forward_pre_hook(lambda _, given, kept=kept: kept.append(given[0].flatten(0, -2).float()))
        for layer, kept in zip(layers, seen, strict=True)
    ]
    try:
        for batch in batches:
            model(batch, use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    return [torch.cat(kept) for kept in seen]


def balanced_groups(weight_FD: Tensor, experts: int, *, generator: torch.Generator, rounds: int = 8) -> Tensor:
    """A group for every neuron, all groups of one size: k-means over the directions that neurons listen to."""
    count = len(weight_FD)
    if count % experts:
        raise ValueError(f"{count} neurons cannot be split into {experts} experts of one size")
    rows = nn.functional.normalize(weight_FD, dim=-1)
    centres = rows[torch.randperm(count, generator=generator)[:experts]]
    groups = torch.zeros(count, dtype=torch.long)
    for _ in range(rounds):
        likeness = rows @ centres.T
        groups = _fill(likeness, count // experts)
        centres = nn.functional.normalize(torch.stack([rows[groups == e].mean(0) for e in range(experts)]), dim=-1)
    return groups


def _fill(likeness_FE: Tensor, size: int) -> Tensor:
    """The neurons with the clearest preference choose first; a group that is full takes no more."""
    top = likeness_FE.topk(min(2, likeness_FE.shape[1]), dim=-1).values
    order = (top[:, 0] - top[:, -1]).argsort(descending=True).tolist()
    wishes = likeness_FE.argsort(dim=-1, descending=True).tolist()
    room, groups = [size] * likeness_FE.shape[1], [0] * len(likeness_FE)
    for neuron in order:
        groups[neuron] = expert = next(e for e in wishes[neuron] if room[e])
        room[expert] -= 1
    return torch.tensor(groups)


@torch.no_grad()
def _hidden(layer: Any, x_ND: Tensor) -> Tensor:
    gate, up = (layer.get_submodule(name).weight.float() for name in ("gate_proj", "up_proj"))
    activated: Tensor = layer.act_fn(x_ND @ gate.T) * (x_ND @ up.T)
    return activated


@torch.no_grad()
def _least_important(layer: Any, hidden_NF: Tensor, count: int) -> Tensor:
    """The neurons whose output varies least: leaving them at their mean loses least."""
    varies_F = hidden_NF.std(0) * layer.get_submodule("down_proj").weight.float().norm(dim=0)
    least: Tensor = varies_F.argsort()[:count].sort().values
    return least


@torch.no_grad()
def _fit_router(layer: Any, x_ND: Tensor, hidden_NF: Tensor, groups_F: Tensor, experts: int) -> Tensor:
    """Router weights whose logits follow the logarithm of how far each expert is from what it adds on average."""
    down = layer.get_submodule("down_proj").weight.float()
    around_NF = hidden_NF - hidden_NF.mean(0)
    lengths = [(around_NF[:, groups_F == e] @ down[:, groups_F == e].T).norm(dim=-1) for e in range(experts)]
    target_NE = torch.stack(lengths, dim=-1).clamp_min(1e-6).log()
    target_NE = target_NE - target_NE.mean(-1, keepdim=True)
    gram = x_ND.T @ x_ND
    ridge = 1e-2 * gram.diagonal().mean() * torch.eye(len(gram), device=gram.device)
    router: Tensor = torch.linalg.solve(gram + ridge, x_ND.T @ target_NE).T.contiguous()
    return router

"""Rules over the graph of a loss and over live objects: each sees its mistake in a real model, and nothing else."""

from __future__ import annotations

import copy
import gc
import json
import time
import weakref
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.checkpoint import checkpoint

import healthy_models
from steadygrad.detect.graph import autograd_graph, run_graph_rules
from steadygrad.detect.graph.autograd_graph import walk
from steadygrad.detect.graph.rules import (
    dead_relu,
    frozen_by_mistake,
    reference_aliased,
    tied_weights_broken,
    vanishing_gradient,
    weight_decay_dominates,
)
from steadygrad.detect.graph.rules.reference_aliased import ModuleCall
from steadygrad.detect.graph.rules.vanishing_gradient import GradientSize
from steadygrad.detect.graph.run_graph_rules import Confirmed, examine_graph, examine_setup, layers_by_depth
from steadygrad.records import rules, to_plain


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def codes(loss: Tensor, model: nn.Module | None = None, **others: Any) -> list[str]:
    named = dict(model.named_parameters()) if model is not None else {}
    held = others.pop("held", {id(p) for p in named.values()})
    found = examine_graph(loss, parameters_in_optimizers=held, named_parameters=named, **others)
    return [finding.code for finding in found]


# -- every rule


@pytest.mark.parametrize("module", run_graph_rules.ALL, ids=lambda module: module.RULE.slug)
def test_rule_sees_its_specimen_and_not_its_near_miss(module: ModuleType) -> None:
    found = module.judge(*module.SPECIMEN())
    assert found is not None
    assert (found.code, found.slug) == (module.RULE.code, module.RULE.slug)
    assert found.subject
    assert found.detail
    json.dumps(to_plain(found), allow_nan=False)
    assert module.judge(*module.NEAR_MISS()) is None


@pytest.mark.parametrize("module", run_graph_rules.ALL, ids=lambda module: module.RULE.slug)
def test_rule_has_a_whole_page_and_a_file_of_its_name(module: ModuleType) -> None:
    page = rules.page(module.RULE.code)
    assert tuple(page.sections) == rules.HEADINGS
    assert all(text.strip() for text in page.sections.values())
    assert page.path.stem == page.slug == module.RULE.slug
    assert (module.__doc__ or "").splitlines()[0] == page.summary


def test_every_rule_file_is_asked() -> None:
    folder = Path(run_graph_rules.__file__).parent / "rules"
    with_rule = {path.stem for path in folder.rglob("*.py") if "\nRULE = " in path.read_text()}
    assert {module.RULE.slug for module in run_graph_rules.ALL} == with_rule


# -- the walk


class Refusing(Tensor):
    """A weight that knows `linear` and refuses every other function, as torch's ExpandedWeight does."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is not F.linear:
            raise RuntimeError(f"cannot handle function {function}")
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **(kwargs or {}))


def test_a_weight_whose_class_refuses_functions_is_read_without_that_class() -> None:
    plain = [torch.randn(16, 4), torch.randn(1, 16)]
    first, last = (Tensor._make_subclass(Refusing, each, True) for each in plain)
    loss = F.linear(torch.relu(F.linear(torch.randn(32, 4), first) - 100.0), last).sum()
    faults: list[Exception] = []
    named: dict[str, Any] = {"first.weight": first, "last.weight": last}
    found = examine_graph(loss, parameters_in_optimizers=set(), named_parameters=named, failed=faults.append)
    assert not faults
    assert [finding.code for finding in found] == [dead_relu.RULE.code]
    assert layers_by_depth(loss, {id(each): name for name, each in named.items()}) == ["last.weight", "first.weight"]


def _deep(layers: int = 12) -> nn.Module:
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


def test_a_look_at_twelve_transformer_layers_takes_milliseconds() -> None:
    model = _deep()
    loss = model(torch.randn(2, 8, 32)).sum()
    took = []
    for _ in range(5):
        began = time.perf_counter()
        assert codes(loss, model) == []
        took.append(time.perf_counter() - began)
    assert min(took) < 0.05  # 6 ms where it was measured; the machine of the test may be busy


def test_a_look_keeps_nothing_and_changes_no_gradient() -> None:
    model = healthy_models.mlp(8, 16, 16, 4)
    batch = torch.randn(16, 8, requires_grad=True)
    model(batch).pow(2).mean().backward()
    expected = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    loss = model(batch).pow(2).mean()
    examine_graph(loss, parameters_in_optimizers=set(), named_parameters=dict(model.named_parameters()))
    loss.backward()
    assert all(torch.equal(p.grad, e) for p, e in zip(model.parameters(), expected, strict=True))
    gone = weakref.ref(batch)  # a leaf that the graph keeps
    loss = model(batch).pow(2).mean()
    examine_graph(loss, parameters_in_optimizers=set(), named_parameters={})
    del loss, batch
    gc.collect()
    assert gone() is None


def test_activations_behind_checkpointing_are_not_computed_again() -> None:
    inner = healthy_models.mlp(8, 16, 16)
    calls: list[int] = []
    inner.register_forward_hook(lambda *_: calls.append(1))
    nn.init.constant_(inner[0].bias, -100.0)
    head = nn.Linear(16, 2)
    assert codes(head(checkpoint(inner, torch.randn(16, 8), use_reentrant=False)).sum()) == []
    assert calls == [1]


def test_a_graph_that_was_freed_and_a_loss_without_one_are_not_judged() -> None:
    loss = healthy_models.mlp(8, 16, 4)(torch.randn(16, 8)).sum()
    loss.backward()
    assert codes(loss) == []
    assert codes(torch.zeros(())) == []


def test_a_longer_graph_than_the_walk_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autograd_graph, "MAX_NODES", 20)
    x = torch.ones(2, requires_grad=True)
    for _ in range(100):
        x = x * 1.5
    graph = walk(x.sum())
    assert graph.truncated
    assert len(graph.nodes) <= 21


# -- probabilities into a loss of logits


LABELS = torch.tensor([0, 1, 2, 3, 0, 1, 2, 3])


@pytest.mark.parametrize(
    "loss",
    [
        lambda z: F.cross_entropy(z.softmax(-1), LABELS),
        lambda z: F.cross_entropy(z.softmax(-1), LABELS, label_smoothing=0.1),
        lambda z: F.cross_entropy(z.softmax(-1).to(torch.float64)[:, :3].contiguous(), LABELS.clamp(max=2)),
        lambda z: F.cross_entropy(torch.sigmoid(z), LABELS),
        lambda z: F.cross_entropy(torch.log_softmax(z, -1).exp(), LABELS),
        lambda z: F.binary_cross_entropy_with_logits(torch.sigmoid(z).squeeze(), torch.rand(8, 4)),
        lambda z: F.cross_entropy(z.softmax(-1).clamp(min=1e-6) + 1e-6, LABELS),
        lambda z: F.nll_loss(z.softmax(-1), LABELS),
        lambda z: -torch.log(z.softmax(-1).softmax(-1)).gather(1, LABELS[:, None]).mean(),
        lambda z: -F.logsigmoid(torch.sigmoid(z)).mean(),
        lambda z: F.nll_loss(F.log_softmax(F.softmax(z, 1).view(2, 4, 4).view(8, 4), 1), LABELS),
    ],
)
def test_probabilities_in_a_loss_of_logits_are_seen(loss: Any) -> None:
    model = nn.Linear(6, 4)
    assert codes(loss(model(torch.randn(8, 6))), model) == ["SY440"]


@pytest.mark.parametrize(
    "loss",
    [
        lambda z: F.cross_entropy(z, LABELS),
        lambda z: F.cross_entropy(F.log_softmax(z, -1), LABELS),
        lambda z: F.nll_loss(torch.log(z.softmax(-1)), LABELS),
        lambda z: F.cross_entropy(z.softmax(-1) / 0.05, LABELS),
        lambda z: F.kl_div(F.log_softmax(z, -1), torch.rand(8, 4).softmax(-1), reduction="batchmean"),
        lambda z: F.cross_entropy(z, F.softmax(z.detach(), -1)),
        lambda z: F.binary_cross_entropy(torch.sigmoid(z), torch.rand(8, 4)),
        lambda z: F.cross_entropy(z.softmax(0), LABELS),
    ],
)
def test_other_uses_of_softmax_are_healthy(loss: Any) -> None:
    model = nn.Linear(6, 4)
    assert codes(loss(model(torch.randn(8, 6))), model) == []


# -- every prediction with every target


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize(
    "loss",
    [
        lambda p, y: F.mse_loss(p, y),
        lambda p, y: F.smooth_l1_loss(p, y),
        lambda p, y: F.l1_loss(p, y),
        lambda p, y: F.huber_loss(p, y),
        lambda p, y: ((p - y) ** 2).mean(),
        lambda p, y: ((y - p) ** 2).mean(),
        lambda p, y: 0.5 * (y - p.squeeze(-1)[None]).abs().sum() if y.dim() > 1 else (p - y).abs().sum() * 0.5,
        lambda p, y: ((p.squeeze(-1) - y[:, None]) ** 2).mean(),
        lambda p, y: torch.max(0.9 * (y - p), -0.1 * (y - p)).mean(),
        lambda p, y: torch.log(torch.cosh(p - y)).mean(),
        lambda p, y: ((p - y) ** 2 / (1 + p**2)).mean(),
    ],
)
def test_a_column_against_a_row_is_seen(loss: Any) -> None:
    model = nn.Linear(6, 1)
    assert codes(loss(model(torch.randn(8, 6)), torch.randn(8)), model, num_rows=8) == ["SY441"]


@pytest.mark.parametrize(
    "loss",
    [
        lambda p, y: F.mse_loss(p.squeeze(-1), y),
        lambda p, y: F.mse_loss(p, y[:, None]),
        lambda p, y: F.relu(1 - (p - p.T) * torch.sign(y[:, None] - y[None])).mean(),
        lambda p, y: ((p - y) ** 2).min(1).values.mean(),
        lambda p, y: -torch.logsumexp(-((p - y) ** 2), 1).mean(),
        lambda p, y: ((p - p.T) ** 2).mean() - ((p - y) ** 2).exp().mean(),
        lambda p, y: 2 * (p - y).abs().mean() - (p - p.T).abs().mean(),
        lambda p, y: (p - y).abs().mean(1).min(),
        lambda p, y: (p * torch.ones(8, 8).tril()).sum(0).exp().mean(),
    ],
)
def test_paired_pairwise_and_set_losses_are_healthy(loss: Any) -> None:
    model = nn.Linear(6, 1)
    assert codes(loss(model(torch.randn(8, 6)), torch.randn(8)), model, num_rows=8) == []


def test_a_square_that_is_not_the_batch_is_healthy() -> None:
    model = nn.Linear(6, 1)
    loss = ((model(torch.randn(5, 6)) - torch.randn(5)) ** 2).mean()
    assert codes(loss, model, num_rows=40) == []


# -- parameters that no optimizer holds


def test_a_criterion_with_parameters_in_no_optimizer_is_seen() -> None:
    model, centers = nn.Linear(6, 4), nn.Linear(4, 4)
    found = examine_graph(
        centers(model(torch.randn(8, 6))).pow(2).mean(),
        parameters_in_optimizers={id(p) for p in model.parameters()},
        named_parameters=dict(model.named_parameters()),
    )
    assert [finding.code for finding in found] == ["SY405"]
    assert found[0].evidence["num_elements"] == 20


@pytest.mark.parametrize("frozen", [True, False])
def test_a_frozen_criterion_and_a_trained_input_are_healthy(frozen: bool) -> None:
    model, prompt = nn.Linear(6, 4), torch.randn(8, 6, requires_grad=not frozen)
    criterion = nn.Linear(4, 4).requires_grad_(False)
    assert codes(criterion(model(prompt)).pow(2).mean(), model) == []


# -- dead and saturated layers


def _dead(model: nn.Sequential) -> nn.Sequential:
    with torch.no_grad():
        model[0].bias.fill_(-1000.0)
    return model


@pytest.mark.parametrize("act", [nn.ReLU, nn.ReLU6, nn.GELU])
def test_a_layer_whose_units_are_all_off_is_seen(act: type[nn.Module]) -> None:
    model = _dead(healthy_models.mlp(8, 32, 32, 4, act=act))
    found = examine_graph(
        F.cross_entropy(model(torch.randn(8, 8)), LABELS),
        parameters_in_optimizers=set(),
        named_parameters=dict(model.named_parameters()),
    )
    assert [(finding.code, finding.subject) for finding in found] == [("SY442", "0")]


def test_dead_channels_of_a_convolution_behind_a_norm_are_seen() -> None:
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 4, 3))
    nn.init.constant_(model[1].bias, -100.0)
    assert codes(model(torch.randn(4, 3, 8, 8)).clamp(min=0).mean(), model) == ["SY442"]


def test_clamped_at_zero_is_a_relu_too() -> None:
    first, last = nn.Linear(8, 16), nn.Linear(16, 1)
    nn.init.constant_(first.bias, -100.0)
    assert codes(last(first(torch.randn(16, 8)).clamp(min=0)).mean()) == ["SY442"]


def test_a_satisfied_hinge_and_a_layer_used_by_one_of_its_calls_are_healthy() -> None:
    model = nn.Linear(8, 16)
    assert codes(F.relu(model(torch.randn(16, 8)) - 1000.0).mean(), model) == []
    shared, head = nn.Linear(8, 16), nn.Linear(16, 1)
    used, unused = torch.rand(16, 8), torch.rand(16, 8)
    with torch.no_grad():
        shared.weight.fill_(1.0)
    loss = head(torch.relu(shared(used))).mean() + head(torch.relu(shared(-1000 * unused))).mean()
    assert codes(loss) == []


def test_a_sparse_dictionary_is_healthy_and_one_that_fires_for_all_rows_is_not() -> None:
    def dictionary(on: Tensor) -> Tensor:
        encoder = nn.Linear(64, 1024, bias=False)
        with torch.no_grad():
            encoder.weight.copy_(on)
        return nn.Linear(1024, 4)(torch.relu(encoder(torch.eye(64)))).sum()

    sparse, few = -torch.ones(1024, 64), -torch.ones(1024, 64)
    for row in range(16):
        sparse[row * 7, row] = 1.0
    few[:16] = 1.0
    assert dead_relu.judge(walk(dictionary(sparse))) is None
    found = dead_relu.judge(walk(dictionary(few)))
    assert found is not None
    assert found.evidence["share"] == 1008 / 1024


@pytest.mark.parametrize("act", [nn.Tanh, nn.Sigmoid])
def test_a_layer_with_huge_inputs_is_saturated(act: type[nn.Module]) -> None:
    model = healthy_models.mlp(8, 32, 32, 4, act=act)
    assert codes(F.cross_entropy(model(1e6 * torch.randn(8, 8)), LABELS), model) == ["SY443"]


def test_gates_outputs_and_another_network_are_not_hidden_layers() -> None:
    large = 1e6 * torch.randn(16, 8)
    gate, value, head = nn.Linear(8, 16), nn.Linear(8, 16), nn.Linear(16, 2)
    assert codes(head(torch.sigmoid(gate(large)) * value(torch.randn(16, 8))).sum()) == []
    assert codes(torch.tanh(gate(large)).mean()) == []
    held = [{id(p) for p in gate.parameters()}, {id(p) for p in head.parameters()}]
    assert codes(head(torch.tanh(gate(large))).sum(), held=held) == []


# -- vanishing gradients


def _gradients(model: nn.Module, batch: Tensor) -> list[GradientSize]:
    loss = F.cross_entropy(model(batch), torch.zeros(len(batch), dtype=torch.long))
    order = layers_by_depth(loss, {id(p): name for name, p in model.named_parameters()})
    loss.backward()
    named = dict(model.named_parameters())
    return [GradientSize(n, float(named[n].grad.norm()), named[n].numel(), named[n].dim()) for n in order]


def test_a_deep_network_of_sigmoids_vanishes_and_one_of_relus_does_not() -> None:
    batch = torch.randn(16, 32)
    found = vanishing_gradient.judge(_gradients(healthy_models.mlp(*[32] * 14, 4, act=nn.Sigmoid), batch))
    assert found is not None
    assert found.subject == "0.weight"
    assert vanishing_gradient.judge(_gradients(healthy_models.mlp(*[32] * 14, 4), batch)) is None
    model = healthy_models.Transformer(causal=True, depth=16)
    assert vanishing_gradient.judge(_gradients(nn.Sequential(model, nn.Flatten()), healthy_models.tokens())) is None


def test_outputs_that_shrink_with_the_gradients_leave_all_weights_with_next_to_nothing() -> None:
    model = healthy_models.mlp(*[32] * 12, 4)
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.02)
            nn.init.zeros_(module.bias)
    found = vanishing_gradient.judge(_gradients(model, torch.randn(16, 32)))
    assert found is not None
    assert found.subject == "0.weight"


def test_biases_that_get_less_and_less_are_healthy_where_the_weights_are_well() -> None:
    weights = [GradientSize(f"{place}.weight", 1.0, 1, 2) for place in range(12)]
    decaying = [GradientSize(f"{place}.bias", 10.0**-place, 1, 1) for place in range(12)]
    assert vanishing_gradient.judge([each for pair in zip(decaying, weights, strict=True) for each in pair]) is None


@pytest.mark.parametrize(
    "norms",
    [
        (1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0),
        (1.0, 1e-7, 1.0, 1e-7, 1.0, 1e-7, 1.0),
        (1e-9, 1e-9, 1e-9, 1e-9, 1e-9, 1e-9),
        (1.0, 1e-2, 1e-4, 1e-6),
    ],
    ids=["exact zeros", "adapters at their start", "small everywhere", "three steps"],
)
def test_other_small_gradients_are_healthy(norms: tuple[float, ...]) -> None:
    sizes = [GradientSize(f"layers.{place}.weight", norm, 1, 2) for place, norm in enumerate(norms)]
    assert vanishing_gradient.judge(sizes) is None
    decaying = [GradientSize(f"{place}.bias", 10.0**-place, 1, 1) for place in range(12)]
    assert vanishing_gradient.judge(decaying) is None


# -- weight decay


@pytest.mark.parametrize(
    ("kind", "options", "expected"),
    [
        (torch.optim.AdamW, {"lr": 1e-2, "weight_decay": 2.0}, True),
        (torch.optim.AdamW, {"lr": 1e-3, "weight_decay": 10.0, "fused": True}, True),
        (torch.optim.AdamW, {"lr": 1e-3, "weight_decay": 0.1}, False),
        (torch.optim.AdamW, {"lr": 1e-1, "weight_decay": 0.1}, False),
        (torch.optim.AdamW, {"lr": 0.0, "weight_decay": 10.0}, False),
        (torch.optim.Adam, {"lr": 1e-2, "weight_decay": 2.0}, False),
        (torch.optim.SGD, {"lr": 0.1, "weight_decay": 5e-4, "momentum": 0.9}, False),
        (torch.optim.SGD, {"lr": 0.1, "weight_decay": 1.0}, True),
        (torch.optim.LBFGS, {"lr": 1.0}, False),
    ],
)
def test_decay_is_measured_by_a_step_of_the_optimizer(kind: Any, options: dict[str, Any], expected: bool) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))
    optimizer = kind(model.parameters(), **options)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 1e-3)
    before = copy.deepcopy(optimizer.state_dict())
    random = torch.get_rng_state()
    stepped: list[int] = []
    hook = register_optimizer_step_pre_hook(lambda *_: stepped.append(1))
    found = weight_decay_dominates.judge([optimizer])
    hook.remove()
    assert (found is not None) is expected
    assert optimizer.state_dict() == before
    assert torch.equal(torch.get_rng_state(), random)
    assert stepped == []


def test_decay_that_large_updates_hold_is_healthy_with_sgd() -> None:
    model = nn.LayerNorm(8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    assert weight_decay_dominates.judge([optimizer]) is None


# -- ties, frozen parts, references


class Tied(nn.Module):
    def __init__(self, tied: bool = True) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(40, 8), nn.Linear(8, 40, bias=False)
        if tied:
            self.head.weight = self.embed.weight


def test_a_tie_that_a_copy_has_broken_is_seen() -> None:
    model = Tied()
    assert tied_weights_broken.judge(model) is None
    model.head.weight = nn.Parameter(model.embed.weight.detach().clone())
    found = tied_weights_broken.judge(model)
    assert found is not None
    assert found.evidence["names"] == ["embed.weight", "head.weight"]


def test_separate_frozen_and_declared_separate_tables_are_healthy() -> None:
    assert tied_weights_broken.judge(Tied(tied=False)) is None
    copied = Tied()
    copied.head.weight = nn.Parameter(copied.embed.weight.detach().clone())
    copied.embed.requires_grad_(False)
    assert tied_weights_broken.judge(copied) is None
    copied.embed.requires_grad_(True)
    copied.config = type("Config", (), {"tie_word_embeddings": False})()
    assert tied_weights_broken.judge(copied) is None


def test_a_declared_tie_of_two_tensors_is_seen() -> None:
    class Declared(Tied):
        config = type("Config", (), {"tie_word_embeddings": True})()

        def get_input_embeddings(self) -> nn.Module:
            return self.embed

        def get_output_embeddings(self) -> nn.Module:
            return self.head

    assert tied_weights_broken.judge(Declared(tied=True)) is None
    assert tied_weights_broken.judge(Declared(tied=False)) is not None


@pytest.mark.parametrize(
    "says",
    [
        {"tie_word_embeddings": True},
        {"weight_tying": True},
        {"_tied_weights_keys": ["head.weight"]},
        {"config": {"tie_embeddings": True, "tie_encoder_decoder": False}},
        {"config": SimpleNamespace(tie_weights=True)},
    ],
)
def test_a_model_or_its_configuration_may_declare_the_tie(says: dict[str, Any]) -> None:
    assert tied_weights_broken.judge(type("Declared", (Tied,), says)(tied=True)) is None
    found = tied_weights_broken.judge(type("Declared", (Tied,), says)(tied=False))
    assert found is not None
    assert found.evidence["declared"]
    assert found.evidence["names"] == ["embed.weight", "head.weight"]


def test_a_tie_that_is_made_again_after_a_resize_is_healthy() -> None:
    class Resized(Tied):
        tie_word_embeddings = True

        def resize(self, rows: int) -> None:
            self.embed, self.head = nn.Embedding(rows, 8), nn.Linear(8, rows)

    model = Resized()
    model.resize(42)
    assert tied_weights_broken.judge(model) is not None
    model.head.weight = model.embed.weight
    assert tied_weights_broken.judge(model) is None


@pytest.mark.parametrize(
    "says",
    [
        {"tie_word_embeddings": False, "_tied_weights_keys": ["head.weight"]},
        {"config": {"tie_embeddings": False}, "_tied_weights_keys": ["head.weight"]},
        {"tie_break": True},
        {"tie_encoder_decoder": True},
        {"tie_weights": lambda self: None},
    ],
)
def test_no_tie_is_declared_by_a_switch_that_is_off_or_of_something_else(says: dict[str, Any]) -> None:
    assert tied_weights_broken.judge(type("Declared", (Tied,), says)(tied=False)) is None


def _stack(frozen: set[int], size: int = 12) -> nn.Module:
    layers = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)) for _ in range(size))
    for index in frozen:
        layers[index].requires_grad_(False)
    return nn.ModuleDict({"stem": nn.Linear(4, 4), "layers": layers})


@pytest.mark.parametrize("frozen", [{0, 1, 10, 11}, {1, 10, 11}])
def test_layers_frozen_by_the_text_of_their_index_are_seen(frozen: set[int]) -> None:
    found = frozen_by_mistake.judge(_stack(frozen))
    assert found is not None
    assert found.evidence["names"] == ["layers.10", "layers.11"]


@pytest.mark.parametrize("frozen", [set(), {0, 1}, {10, 11}, set(range(12)), set(range(11)), {0, 2, 4, 6}, {0, 11}])
def test_other_frozen_layers_are_healthy(frozen: set[int]) -> None:
    assert frozen_by_mistake.judge(_stack(frozen)) is None


def test_zero_rows_of_a_frozen_table_that_are_read_are_seen() -> None:
    model = nn.ModuleDict({"words": nn.Embedding(40, 8, padding_idx=0)})
    read = {id(model["words"]): torch.arange(20).reshape(4, 5)}
    with torch.no_grad():
        model["words"].weight[10:] = 0
    assert frozen_by_mistake.judge(model, read) is None  # trained: the rows will learn
    model.requires_grad_(False)
    found = frozen_by_mistake.judge(model, read)
    assert found is not None
    assert found.evidence["zero_rows"] == 10
    assert frozen_by_mistake.judge(model, {id(model["words"]): torch.arange(10)}) is None


def test_networks_that_share_a_trunk_wrappers_and_one_model_called_twice_are_healthy() -> None:
    trunk = nn.Linear(4, 4)
    actor, critic = nn.Sequential(trunk, nn.Linear(4, 2)), nn.Sequential(trunk, nn.Linear(4, 1))
    assert reference_aliased.judge([ModuleCall(actor, True), ModuleCall(critic, False)]) is None
    wrapper = nn.Sequential(actor)
    assert reference_aliased.judge([ModuleCall(wrapper, True), ModuleCall(actor, False)]) is None
    assert reference_aliased.judge([ModuleCall(actor, True), ModuleCall(actor, False)], actor) is None
    assert reference_aliased.judge([ModuleCall(actor, True), ModuleCall(copy.deepcopy(actor), False)]) is None


def test_one_module_under_two_names_called_both_ways_is_seen() -> None:
    online = nn.Linear(4, 2)
    holder = nn.Module()
    holder.online, holder.target = online, online
    calls = [ModuleCall(online, True), ModuleCall(online, False)]
    found = reference_aliased.judge(calls, holder)
    assert found is not None
    assert found.evidence["names"] == ["online", "target"]


def _preference(policy: nn.Module, reference: nn.Module, rows: Tensor) -> Tensor:
    with torch.no_grad():
        good, bad = reference(rows[:6]), reference(rows[6:])
    margin = 0.5 * ((policy(rows[:6]) - good) - (policy(rows[6:]) - bad))
    return -F.logsigmoid(margin).mean()


def test_a_preference_margin_of_exactly_zero_after_an_update_is_seen() -> None:
    policy, rows = healthy_models.mlp(4, 16, 1), torch.randn(12, 4)
    reference = copy.deepcopy(policy)
    with torch.no_grad():
        policy[0].weight.mul_(1.01)
    assert codes(_preference(policy, policy, rows), policy) == ["SY448"]
    assert codes(_preference(policy, reference, rows), policy) == []


def test_some_codes_are_reported_after_three_batches_and_every_finding_once() -> None:
    model = _dead(healthy_models.mlp(8, 32, 32, 4))
    confirmed = Confirmed()

    def step(updated: bool) -> list[str]:
        loss = F.cross_entropy(model(torch.randn(8, 8)).softmax(-1), LABELS)
        found = examine_graph(loss, parameters_in_optimizers=set(), named_parameters=dict(model.named_parameters()))
        return [finding.code for finding in confirmed.new(found, updated=updated)]

    assert [step(updated=number > 0) for number in range(5)] == [["SY440"], [], ["SY442"], [], []]


@pytest.mark.parametrize("trained_by_hand", [True, False])
def test_a_parameter_that_something_else_trains_is_not_reported(trained_by_hand: bool) -> None:
    model, scale = nn.Linear(6, 4), nn.Parameter(torch.ones(4))
    confirmed, found = Confirmed(), []
    for number in range(4):
        loss = (model(torch.randn(8, 6)) * scale).pow(2).mean()
        seen = examine_graph(
            loss, parameters_in_optimizers={id(p) for p in model.parameters()}, named_parameters={"scale": scale}
        )
        found += [(number, finding.code) for finding in confirmed.new(seen, updated=number > 0)]
        loss.backward()
        if trained_by_hand:
            with torch.no_grad():
                scale -= 0.1 * scale.grad
    assert found == ([] if trained_by_hand else [(1, "SY405")])


# -- nothing is reported about healthy trainings


@pytest.mark.parametrize("make", healthy_models.ALL.values(), ids=healthy_models.ALL.keys())
def test_nothing_is_reported_about_a_healthy_training(make: Any) -> None:
    healthy = make()
    held = [{id(p) for g in optimizer.param_groups for p in g["params"]} for optimizer in healthy.optimizers]
    assert examine_setup(healthy.model, healthy.optimizers) == []
    for _ in range(3):
        loss = healthy.loss(healthy.model, healthy.batch)
        rows = healthy_models.ROWS
        assert codes(loss, healthy.model, held=held, num_rows=rows) == []
        healthy.step()


def test_a_declared_tie_of_a_model_without_an_output_layer_is_about_nothing() -> None:
    class Encoder(nn.Module):
        config = type("Config", (), {"tie_word_embeddings": True})()

        def __init__(self) -> None:
            super().__init__()
            self.embed, self.layer = nn.Embedding(16, 16), nn.Linear(16, 16)

        def get_input_embeddings(self) -> nn.Module:
            return self.embed

        def get_output_embeddings(self) -> None:
            return None

    assert tied_weights_broken.judge(Encoder()) is None
    copied = Encoder()
    copied.layer.weight = nn.Parameter(copied.embed.weight.detach().clone())
    assert tied_weights_broken.judge(copied) is not None


@pytest.mark.parametrize("listed", [["head.weight"], {"head.weight": "embed.weight"}])
def test_a_tie_that_a_model_lists_and_does_not_have_is_seen(listed: object) -> None:
    class Listed(Tied):
        config = type("Config", (), {"tie_word_embeddings": True})()
        _tied_weights_keys = listed

    assert tied_weights_broken.judge(Listed(tied=True)) is None
    assert tied_weights_broken.judge(Listed(tied=False)) is not None

"""Every torch optimizer in every form: a refused step leaves it bit for bit as it was, or it is refused when made."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from specimens import make_guard, same_bits
from torch import Tensor, nn, optim

import steadygrad as sg
from steadygrad.records.errors import UsageError

Make = Callable[[Iterable[nn.Parameter]], optim.Optimizer]
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
FORMS: dict[str, dict[str, Any]] = {
    "fused": {"fused": True},
    "foreach": {"foreach": True},
    "for-loop": {"foreach": False},
}
KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "sgd": (optim.SGD, {"lr": 0.05}),
    "sgd-momentum": (optim.SGD, {"lr": 0.05, "momentum": 0.9}),
    "sgd-nesterov": (optim.SGD, {"lr": 0.05, "momentum": 0.9, "nesterov": True}),
    "sgd-dampening": (optim.SGD, {"lr": 0.05, "momentum": 0.9, "dampening": 0.5, "weight_decay": 0.1}),
    "adam": (optim.Adam, {"lr": 0.01}),
    "adam-amsgrad": (optim.Adam, {"lr": 0.01, "amsgrad": True}),
    "adamw": (optim.AdamW, {"lr": 0.01}),
    "adamw-amsgrad": (optim.AdamW, {"lr": 0.01, "amsgrad": True, "maximize": True}),
    "nadam": (optim.NAdam, {"lr": 0.01}),
    "radam": (optim.RAdam, {"lr": 0.01}),
    "adamax": (optim.Adamax, {"lr": 0.01}),
    "adagrad": (optim.Adagrad, {"lr": 0.01}),
    "adadelta": (optim.Adadelta, {"lr": 0.5}),
    "rmsprop": (optim.RMSprop, {"lr": 0.01}),
    "rmsprop-momentum-centered": (optim.RMSprop, {"lr": 0.01, "momentum": 0.9, "centered": True}),
    "asgd": (optim.ASGD, {"lr": 0.01}),
    "rprop": (optim.Rprop, {"lr": 0.01}),
    "adafactor": (optim.Adafactor, {"lr": 0.01}),
    "muon": (getattr(optim, "Muon", None), {"lr": 0.01}),
}


def network(dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(3)
    # No biases: Muon takes matrices only.
    return nn.Sequential(nn.Linear(8, 12, bias=False), nn.Tanh(), nn.Linear(12, 1, bias=False)).to(dtype)


def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
    return (model(batch[:, :8]) - batch[:, 8:]).pow(2).mean()


def data(count: int, dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(6, 9, generator=generator).to(dtype) for _ in range(count)]


def maker(kind: str, form: str) -> Make:
    made, options = KINDS[kind]
    return lambda parameters: made(parameters, **options, **FORMS[form])


def plainly(make: Make, batches: Sequence[Tensor], dtype: torch.dtype) -> tuple[nn.Module, optim.Optimizer]:
    model = network(dtype)
    optimizer = make(model.parameters())
    for batch in batches:
        loss_fn(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def constructible(kind: str, form: str, dtype: torch.dtype) -> bool:
    """Whether torch itself makes this optimizer in this form and can step it once."""
    if KINDS[kind][0] is None:
        return False
    try:
        plainly(maker(kind, form), data(1, dtype), dtype)
    except (TypeError, RuntimeError, ValueError):
        return False
    return True


COMBINATIONS = [
    (kind, form, name)
    for kind in KINDS
    for form in FORMS
    for name, dtype in DTYPES.items()
    if constructible(kind, form, dtype)
]


def bits(model: nn.Module, optimizer: optim.Optimizer) -> dict[str, Any]:
    state: dict[str, Any] = dict(model.state_dict())
    for number, parameter in enumerate(p for group in optimizer.param_groups for p in group["params"]):
        held = optimizer.state.get(parameter, {})
        # SGD writes down None where it has no momentum yet, which is the same as nothing.
        state |= {f"{number}.{key}": value for key, value in held.items() if value is not None}
    for number, group in enumerate(optimizer.param_groups):
        state |= {f"group {number}.{key}": value for key, value in group.items() if key != "params"}
    return state


def test_there_are_at_least_forty_combinations() -> None:
    assert len(COMBINATIONS) >= 40
    assert {form for _, form, _ in COMBINATIONS} == set(FORMS)
    assert {kind for kind, _, _ in COMBINATIONS} >= set(KINDS) - {"muon"}


def modes(form: str) -> tuple[str, ...]:
    return ("now", "late") if form == "fused" else ("now",)


def skip_what_differs_by_itself(kind: str, form: str, name: str) -> None:
    if (form, name) == ("fused", "bf16") and "momentum" in KINDS[kind][1] and kind.startswith("sgd"):
        pytest.skip("torch's fused SGD with bf16 momentum on a CPU: a plain run does not equal itself")


@pytest.mark.parametrize(("kind", "form", "name"), COMBINATIONS, ids=["-".join(c) for c in COMBINATIONS])
def test_a_refused_step_leaves_no_bit_changed(kind: str, form: str, name: str) -> None:
    skip_what_differs_by_itself(kind, form, name)
    dtype, make = DTYPES[name], maker(kind, form)
    good = data(4, dtype)
    bad = good[0].clone()
    bad[1, 2] = math.nan
    for mode in modes(form):
        for where in (0, 3):
            model = network(dtype)
            optimizer = make(model.parameters())
            with make_guard(model, optimizer, loss_fn, settle=mode) as guard:
                for batch in good[:where]:
                    guard.step(batch)
                guard.settle()
                before = {key: value.clone() if isinstance(value, Tensor) else value
                          for key, value in bits(model, optimizer).items()}  # fmt: skip
                assert guard.step(bad).skipped
                assert same_bits(before, bits(model, optimizer)) == [], (mode, where)
                assert guard.step(good[where]).applied
                assert guard.summary()["guard_faults"] == {}
                assert guard.summary()["settles"] == mode


@pytest.mark.parametrize(("kind", "form", "name"), COMBINATIONS, ids=["-".join(c) for c in COMBINATIONS])
def test_a_run_with_a_bad_batch_ends_as_one_without_it(kind: str, form: str, name: str) -> None:
    skip_what_differs_by_itself(kind, form, name)
    dtype, make = DTYPES[name], maker(kind, form)
    good = data(5, dtype)
    expected = bits(*plainly(make, good, dtype))
    bad = good[0].clone()
    bad[1, 2] = math.nan
    for mode in modes(form):
        for where in (0, 3):
            model = network(dtype)
            optimizer = make(model.parameters())
            with make_guard(model, optimizer, loss_fn, settle=mode) as guard:
                for batch in [*good[:where], bad, *good[where:]]:
                    guard.step(batch)
            summary = guard.summary()
            assert (summary["applied"], summary["skipped"]) == (5, 1)
            assert same_bits(expected, bits(model, optimizer)) == [], (mode, where)


@pytest.mark.parametrize("kind", sorted({"sgd", "sgd-momentum", "adam", "adamw", "adagrad"}))
def test_only_the_fused_form_settles_late(kind: str) -> None:
    for form in FORMS:
        model = network(torch.float32)
        with sg.Guard(model, maker(kind, form)(model.parameters()), loss_fn, settle="late") as guard:
            assert guard.summary()["settles"] == ("late" if form == "fused" else "now")


@pytest.mark.parametrize("kind", [k for k in KINDS if k in {"nadam", "radam", "rmsprop", "adamax", "rprop", "muon"}])
def test_optimizers_that_would_ignore_the_flag_are_never_asked_to_settle_late(kind: str) -> None:
    if KINDS[kind][0] is None:
        pytest.skip("this torch has no Muon")
    made, options = KINDS[kind]
    model = network(torch.float32)
    with sg.Guard(model, made(model.parameters(), **options), loss_fn, settle="late") as guard:
        assert guard.summary()["settles"] == "now"


@pytest.mark.parametrize("where", [0, 2])
def test_sparse_adam_is_left_as_it_was(where: int) -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(20, 4, sparse=True)

        def forward(self, ids: Tensor) -> Tensor:
            return self.embed(ids).sum(-1)

    def words_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        ids, target = batch
        return (model(ids) - target).pow(2).mean()

    def make() -> tuple[nn.Module, optim.Optimizer]:
        torch.manual_seed(3)
        model = Words()
        return model, optim.SparseAdam(model.parameters(), lr=0.05)

    generator = torch.Generator().manual_seed(1)
    # Ids repeat within a batch, so the gradients come uncoalesced.
    good = [(torch.randint(0, 6, (8,), generator=generator), torch.randn(8, generator=generator)) for _ in range(4)]
    bad = (good[0][0], torch.full((8,), math.nan))
    model, optimizer = make()
    for batch in good:
        words_loss(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    expected = bits(model, optimizer)
    model, optimizer = make()
    with make_guard(model, optimizer, words_loss) as guard:
        for batch in [*good[:where], bad, *good[where:]]:
            guard.step(batch)
    assert guard.summary()["guard_faults"] == {}
    assert guard.summary()["skipped"] == 1
    assert same_bits(expected, bits(model, optimizer)) == []


def test_sparse_gradients_reach_the_optimizer_as_they_are() -> None:
    """SGD adds the rows of a gradient one after another: coalesced before, they are rounded differently."""

    def embed_loss(model: nn.Module, ids: Tensor) -> Tensor:
        return (model(ids).sum(-1) - 1).pow(3).mean()

    def make() -> tuple[nn.Module, optim.Optimizer]:
        torch.manual_seed(3)
        model = nn.Embedding(5, 4, sparse=True)
        return model, optim.SGD(model.parameters(), lr=0.1)

    batches = torch.randint(0, 5, (6, 64), generator=torch.Generator().manual_seed(1))
    expected = None
    for entry_point in ("none", "attach", "guard"):
        model, optimizer = make()
        attached = sg.attach(optimizer, model=model) if entry_point == "attach" else None
        with make_guard(model, optimizer, embed_loss) if entry_point == "guard" else nullcontext() as guard:
            for batch in batches:
                if guard is not None:
                    guard.step(batch)
                    continue
                embed_loss(model, batch).backward()
                optimizer.step()
                optimizer.zero_grad()
        if attached is not None:
            attached.close()
        expected = expected or bits(model, optimizer)
        assert same_bits(expected, bits(model, optimizer)) == [], entry_point


def test_a_sparse_gradient_is_clipped_to_the_norm_of_its_sums() -> None:
    model = nn.Embedding(2, 3, sparse=True)
    before = model.weight.detach().clone()
    guard = make_guard(
        model, optim.SGD(model.parameters(), lr=1.0), lambda m, ids: 10 * m(ids).sum(), max_grad_norm=0.5
    )
    with guard:
        guard.step(torch.tensor([1, 1, 1]))
    assert torch.linalg.vector_norm(model.weight.detach() - before).item() == pytest.approx(0.5, rel=1e-4)


def test_lbfgs_is_refused_in_a_sentence() -> None:
    model = network(torch.float32)
    with pytest.raises(UsageError, match="LBFGS evaluates the loss several times inside step") as refused:
        sg.Guard(model, optim.LBFGS(model.parameters()), loss_fn)
    assert str(refused.value).count(".") <= 4


def test_a_differentiable_optimizer_is_refused_in_a_sentence() -> None:
    model = network(torch.float32)
    with pytest.raises(UsageError, match="differentiable=True keeps a graph of its steps"):
        sg.Guard(model, optim.SGD(model.parameters(), lr=0.1, differentiable=True), loss_fn)


def test_the_matrix_can_fail() -> None:
    """The twin: without the guard the bad batch is written."""
    make = maker("adamw", "fused")
    good = data(5, torch.float32)
    bad = good[0].clone()
    bad[1, 2] = math.nan
    expected = bits(*plainly(make, good, torch.float32))
    assert same_bits(expected, bits(*plainly(make, [*good[:3], bad, *good[3:]], torch.float32)))


def test_an_optimizer_that_cannot_step_without_a_closure_is_refused_in_a_sentence_at_the_start() -> None:
    class Searching(torch.optim.SGD):
        def step(self, closure: Any) -> Any:  # type: ignore[override]
            return closure()

    model = nn.Linear(2, 1)
    with pytest.raises(sg.UsageError, match=r"Searching\.step\(\) needs a closure .* Keep your own loop"):
        sg.Guard(model, Searching(model.parameters(), lr=0.1), lambda model, batch: model(batch).sum())

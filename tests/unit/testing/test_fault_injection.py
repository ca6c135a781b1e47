"""sg.testing: each kind of fault strikes what it says, once, and nothing else; without a strike nothing changes."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import steadygrad as sg
from steadygrad.records.rerun_flag import rerun
from steadygrad.testing import KINDS, Faults, inject

IN_TRAINING = [kind for kind in KINDS if kind != "nan_logits"]


def make() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def batches(count: int) -> list[Tensor]:
    return [torch.randn(6, 4, generator=torch.Generator().manual_seed(number)) for number in range(count)]


def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
    return model(batch).square().mean()


def gradients_of(model: nn.Module) -> list[Tensor]:
    return [p.grad for p in model.parameters() if p.grad is not None]


def passes(
    model: nn.Module, count: int, look: Callable[[int, Tensor], None] = lambda number, loss: None
) -> list[list[Tensor]]:
    """Forward and backward without an update: the gradients of each pass."""
    found = []
    for number, batch in enumerate(batches(count)):
        model.zero_grad()
        loss = loss_fn(model, batch)
        loss.backward()
        look(number, loss.detach())
        found.append([gradient.clone() for gradient in gradients_of(model)])
    return found


def test_without_a_strike_the_bits_are_those_of_a_run_without_it() -> None:
    def trained(injected: bool) -> list[Tensor]:
        model = make()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        faults = inject(model, at={99: "nan_gradient"}) if injected else None
        for batch in batches(5):
            optimizer.zero_grad()
            (loss_fn(model, batch) + torch.randn(())).backward()
            optimizer.step()
        if faults is not None:
            assert faults.struck == []
            faults.close()
        return [p.detach() for p in model.parameters()]

    assert all(torch.equal(a, b) for a, b in zip(trained(False), trained(True), strict=True))


@pytest.mark.parametrize("kind", ["nan_gradient", "inf_gradient"])
def test_a_bad_gradient_is_in_one_element_of_one_parameter_at_its_pass_alone(kind: str) -> None:
    model = make()
    with inject(model, at={2: kind}) as faults:
        found = passes(model, 4)
    bad = [sum(int((~torch.isfinite(g)).sum()) for g in gradients) for gradients in found]
    assert bad == [0, 0, 1, 0]
    (strike,) = faults.struck
    assert (strike.step, strike.kind) == (2, kind)
    names = [name for name, _ in model.named_parameters()]
    (place,) = (index for index, gradient in enumerate(found[2]) if not torch.isfinite(gradient).all())
    assert strike.target == names[place]
    value = found[2][place][~torch.isfinite(found[2][place])]
    assert bool(torch.isnan(value)) == (kind == "nan_gradient")


def test_a_huge_gradient_is_finite_and_a_million_times_what_it_was() -> None:
    plain = passes(make(), 2)
    model = make()
    with inject(model, at={1: "huge_gradient"}) as faults:
        found = passes(model, 2)
    ratios = [float((a / b).median()) for a, b in zip(found[1], plain[1], strict=True)]
    assert sorted(ratios)[:-1] == pytest.approx([1.0] * 3)
    assert max(ratios) == pytest.approx(1e6)
    assert len(faults.struck) == 1


@pytest.mark.parametrize("kind", ["nan_activation", "inf_activation"])
def test_a_bad_activation_spoils_that_pass_and_names_the_module(kind: str) -> None:
    model = make()
    losses: list[Tensor] = []
    with inject(model, at={1: kind}, seed=3) as faults:
        passes(model, 3, lambda number, loss: losses.append(loss))
    (strike,) = faults.struck
    assert strike.target in {"0", "1", "2"}
    if kind == "nan_activation":
        assert [math.isnan(loss) for loss in losses] == [False, True, False]
    plain: list[Tensor] = []
    passes(make(), 3, lambda number, loss: plain.append(loss))
    assert [torch.equal(a, b) for a, b in zip(losses, plain, strict=True)] == [True, False, True]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_a_flipped_weight_differs_in_the_highest_exponent_bit_and_stays(dtype: torch.dtype) -> None:
    model = make().to(dtype)
    before = [p.detach().clone() for p in model.parameters()]
    with inject(model, at={0: "flipped_weight"}) as faults, torch.enable_grad():
        model(batches(1)[0].to(dtype))
        model(batches(1)[0].to(dtype))
    changed = [(a, b) for a, b in zip(before, model.parameters(), strict=True) if not torch.equal(a, b)]
    ((old, new),) = changed
    place = (old != new).nonzero()
    assert len(place) == 1
    was, now = (float(t.detach()[tuple(place[0])]) for t in (old, new))
    top = {torch.float16: 16, torch.float64: 1024}.get(dtype, 128)
    assert now == pytest.approx(math.ldexp(was, top)) or not math.isfinite(now)
    assert faults.counts() == {"flipped_weight": 1}


def test_bad_logits_come_in_passes_without_gradients_only_and_in_one_row() -> None:
    model = make()
    with inject(model, at={0: "nan_logits"}) as faults:
        with torch.no_grad():
            first, second = model(batches(1)[0]), model(batches(1)[0])
        assert torch.isfinite(model(batches(1)[0])).all()
    assert torch.isnan(first).any(dim=1).sum() == 1
    assert torch.isfinite(second).all()
    assert [strike.kind for strike in faults.struck] == ["nan_logits"]


def test_the_same_seed_strikes_the_same_and_another_does_not() -> None:
    def struck(seed: int) -> list[tuple[int, str, str]]:
        model = make()
        with inject(model, rate=0.5, kinds=["nan_gradient", "nan_activation"], seed=seed) as faults:
            passes(model, 20)
        return [(strike.step, strike.kind, strike.target) for strike in faults.struck]

    assert struck(0) == struck(0)
    assert struck(0) != struck(1)
    assert 4 <= len(struck(0)) <= 16


def test_when_it_is_closed_nothing_of_it_is_left_on_the_model() -> None:
    model = make()
    faults = inject(model, rate=1.0, kinds=IN_TRAINING[:4])
    model(batches(1)[0])  # forward alone: a hook on a gradient may wait for a backward that never comes
    faults.close()
    faults.close()
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())
    found = passes(model, 3)
    assert all(torch.isfinite(gradient).all() for gradients in found for gradient in gradients)


@pytest.mark.parametrize("kind", IN_TRAINING)
def test_a_guarded_run_survives_every_kind_with_finite_weights(kind: str, tmp_path: Path) -> None:
    model = make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    with (
        sg.Guard(model, optimizer, loss_fn, run_dir=tmp_path, diagnose="off", max_grad_norm=1.0) as guard,
        inject(model, at={30: kind}, seed=1) as faults,
    ):
        for batch in batches(60):
            guard.step(batch)
        summary = guard.summary()
    assert faults.counts() == {kind: 1}
    assert summary["steps"] >= 60  # those that are run again after going back count, too
    assert all(torch.isfinite(p).all() for p in model.parameters())
    if kind not in ("inf_activation", "huge_gradient") and not kind.startswith("flipped"):  # these may stay finite
        assert summary["skipped"] >= 1 or any(found.code == "SY417" for i in guard.incidents for found in i.findings)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"at": {0: "gremlin"}}, "no fault of the kind 'gremlin'"),
        ({"kinds": ["gremlin"], "rate": 0.5}, "no fault of the kind 'gremlin'"),
        ({"rate": 1.5}, "chance between 0 and 1"),
    ],
)
def test_a_mistake_is_told_in_one_sentence(given: dict[str, object], words: str) -> None:
    with pytest.raises(sg.UsageError, match=words):
        inject(make(), **given)  # type: ignore[arg-type]


def test_a_model_with_nothing_to_strike_is_refused() -> None:
    with pytest.raises(sg.UsageError, match="no part to strike"):
        inject(nn.Linear(2, 2))


def test_testing_is_reached_through_the_package() -> None:
    assert sg.testing.inject is inject
    assert sg.testing.Faults is Faults
    assert "testing" in dir(sg)
    with pytest.raises(AttributeError, match="no attribute 'gremlin'"):
        sg.testing.gremlin  # noqa: B018


# -- passes that are run again


def test_a_pass_that_is_run_again_is_neither_counted_nor_struck() -> None:
    model = make()
    with inject(model, at={1: "nan_activation"}) as faults:
        passes(model, 1)
        with rerun():
            again = passes(model, 3)
        assert faults.passes == 1
        assert faults.struck == []
        assert all(bool(torch.isfinite(gradient).all()) for found in again for gradient in found)
        passes(model, 1)
    assert [(strike.step, strike.kind) for strike in faults.struck] == [(1, "nan_activation")]


def test_a_gradient_that_is_to_be_spoilt_waits_for_the_backward_of_training() -> None:
    model = make()
    with inject(model, at={0: "nan_gradient"}) as faults:
        loss = loss_fn(model, batches(1)[0])
        with rerun():
            loss_fn(model, batches(1)[0]).backward()
        assert all(bool(torch.isfinite(gradient).all()) for gradient in gradients_of(model))
        model.zero_grad()
        loss.backward()
    assert [strike.step for strike in faults.struck] == [0]
    assert not all(bool(torch.isfinite(gradient).all()) for gradient in gradients_of(model))


def test_random_faults_are_the_same_whatever_is_run_again_in_between() -> None:
    def struck(again: bool) -> list[tuple[int, str, str]]:
        model = make()
        with inject(model, rate=0.3, kinds=["nan_activation", "inf_gradient"], seed=3) as faults:
            for _ in range(12):
                passes(model, 1)
                if again:
                    with rerun():
                        passes(model, 2)
        return [(strike.step, strike.kind, strike.target) for strike in faults.struck]

    assert struck(again=True) == struck(again=False)
    assert len(struck(again=False)) > 1


@pytest.mark.parametrize("kind", ["nan_activation", "nan_gradient", "nan_weight"])
def test_planned_faults_strike_training_and_not_the_replays_of_a_diagnosis(kind: str) -> None:
    def guarded(diagnose: str) -> tuple[list[int], int]:
        model = make()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        with (
            sg.Guard(model, optimizer, loss_fn, diagnose=diagnose) as guard,
            inject(  # type: ignore[arg-type]
                model, at={12: kind, 15: kind}
            ) as faults,
        ):
            for batch in batches(20):
                guard.step(batch)
        return [strike.step for strike in faults.struck], faults.passes

    assert guarded("auto") == guarded("off")
    assert guarded("auto")[0] == [12, 15]

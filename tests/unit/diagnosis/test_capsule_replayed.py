"""A capsule put into freshly made code runs the very same step again, whatever the step depends on."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import steadygrad as sg
from steadygrad.diagnosis.capsule.capsule import read_capsule
from steadygrad.diagnosis.capsule.replay_capsule import ReplayResult, replay_capsule
from steadygrad.records.errors import CapsuleError, UsageError


class Net(nn.Module):
    """Dropout, running statistics and a frozen part: the loss shows if any of them is not as it was."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.base = nn.Linear(4, width).requires_grad_(False)
        self.norm = nn.BatchNorm1d(width)
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(self.norm(self.base(x)))).squeeze(1)


def distance(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Finite always; its gradient is not where a weight of nought meets the root."""
    error = model(batch["x"]) * batch["weight"]
    return error.pow(2).sqrt().mean() + error.abs().mean()


def make(width: int = 6) -> tuple[nn.Module, torch.optim.Optimizer, Any]:
    model = Net(width)
    return model, torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01), distance


def data(count: int, bad: int) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(4)
    found = [{"x": torch.randn(5, 4, generator=generator), "weight": torch.ones(5)} for _ in range(count)]
    found[bad]["weight"][2] = 0.0
    return found


def train(run: Path, batches: list[dict[str, Tensor]], **options: Any) -> sg.Guard:
    torch.manual_seed(11)
    with sg.Guard(*make(), run_dir=run, **options) as guard:
        for batch in batches:
            guard.step(batch)
    assert not guard.summary()["guard_faults"]
    return guard


def again(run: Path, entry: Any = make, **options: Any) -> ReplayResult:
    torch.manual_seed(99)  # other weights and other random numbers than the run's: all must come from the capsule
    return replay_capsule(run / "incidents" / "0001", entry, **options)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"precision": "bf16"},
        {"precision": "fp16", "scaler": torch.amp.GradScaler("cpu", init_scale=16.0)},
        {"accumulate": 2},
        {"max_grad_norm": 0.5},
    ],
    ids=["plain", "bf16", "fp16 with a scaler", "two micro-batches", "clipped"],
)
def test_a_replay_gives_the_loss_to_the_bit_and_the_same_diagnosis(options: dict[str, Any], tmp_path: Path) -> None:
    guard = train(tmp_path, data(8, bad=5), diagnose="origin", **options)
    there = guard.incidents[0].diagnosis
    found = again(tmp_path, depth="origin")
    assert found.reproduced
    assert all(map(math.isfinite, found.losses))
    assert found.same_loss_bits
    assert found.losses == found.recorded_losses
    assert len(found.losses) == options.get("accumulate", 1)
    assert there is not None
    assert there.origin is not None
    assert found.diagnosis.origin is not None
    assert found.diagnosis.cause == there.cause
    assert found.diagnosis.cause is not None
    assert found.diagnosis.cause.slug == "sqrt_grad_at_zero"
    assert (found.diagnosis.origin.op, found.diagnosis.origin.source) == (there.origin.op, there.origin.source)
    assert found.diagnosis.rows == there.rows == (2,)


def test_a_loss_that_differs_is_not_called_the_same(tmp_path: Path) -> None:
    train(tmp_path, data(8, bad=5), diagnose="off")

    def changed() -> tuple[Any, Any, Any]:
        model, optimizer, _ = make()
        return model, optimizer, lambda model, batch: distance(model, batch) * 1.0001

    found = again(tmp_path, changed, depth="origin")
    assert found.reproduced
    assert not found.same_loss_bits


def other_width() -> tuple[Any, Any, Any]:
    return make(width=7)


def other_optimizer() -> tuple[Any, Any, Any]:
    model, _, loss_fn = make()
    return model, torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.01), loss_fn


def other_names() -> tuple[Any, Any, Any]:
    class Renamed(Net):
        def __init__(self) -> None:
            super().__init__()
            self.tail = self.head
            del self.head

    model = Renamed()
    return model, torch.optim.AdamW([p for p in model.parameters() if p.requires_grad]), distance


def other_dtype() -> tuple[Any, Any, Any]:
    model = make()[0].double()
    return model, torch.optim.AdamW([p for p in model.parameters() if p.requires_grad]), distance


def other_loss() -> tuple[Any, Any, Any]:
    model, optimizer, _ = make()
    return model, optimizer, lambda model, batch: model(batch["pixels"]).mean()


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (other_width, "was float32 (6,) and is float32 (7,) now"),
        (other_optimizer, "The optimizer was AdamW and is SGD now"),
        (other_names, "has a parameter head.bias and the model has none"),
        (other_dtype, "was float32 (6,) and is float64 (6,) now"),
        (other_loss, "KeyError: 'pixels'"),
    ],
)
def test_a_script_that_changed_since_is_told_in_a_sentence(entry: Any, words: str, tmp_path: Path) -> None:
    train(tmp_path, data(8, bad=5), diagnose="off")
    with pytest.raises(CapsuleError, match="the script changed since") as caught:
        again(tmp_path, entry)
    assert words in str(caught.value)


def test_an_entry_that_returns_something_else_is_told_what_to_return(tmp_path: Path) -> None:
    train(tmp_path, data(8, bad=5), diagnose="off")
    with pytest.raises(UsageError, match="must return"):
        again(tmp_path, lambda: make()[0])


def test_a_redacted_capsule_is_replayed_with_the_batch_that_the_entry_brings(tmp_path: Path) -> None:
    batches = data(8, bad=5)
    train(tmp_path, batches, diagnose="off", capsule="redact")
    with pytest.raises(CapsuleError, match="under 'batches'"):
        again(tmp_path)

    def bringing(batch: dict[str, Tensor]) -> Any:
        return lambda: {**dict(zip(("model", "optimizer", "loss_fn"), make(), strict=True)), "batches": [batch]}

    found = again(tmp_path, bringing(batches[5]), depth="origin")
    assert found.reproduced
    assert found.same_loss_bits
    with pytest.raises(CapsuleError, match="not those of the step"):
        again(tmp_path, bringing({"x": torch.ones(5, 4)}))


def test_with_the_weights_left_out_those_of_the_entry_stand_in_and_it_says_so(tmp_path: Path) -> None:
    train(tmp_path, data(8, bad=5), diagnose="off", capsule_bytes=5300)
    found = again(tmp_path, depth="origin")
    assert found.reproduced  # a weight of nought meets the root whatever the model
    assert not found.same_loss_bits
    assert any("parameters were too large" in note for note in found.notes)


def test_state_that_the_user_registered_comes_back_too(tmp_path: Path) -> None:
    def with_noise() -> dict[str, Any]:
        model, optimizer, _ = make()
        generator = torch.Generator().manual_seed(0)

        def noisy(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
            return distance(model, batch) + torch.rand((), generator=generator)

        noise = {"noise": (generator.get_state, generator.set_state)}
        return {"model": model, "optimizer": optimizer, "loss_fn": noisy, "extra_state": noise}

    made = with_noise()
    torch.manual_seed(11)
    with sg.Guard(*(made[k] for k in ("model", "optimizer", "loss_fn")), run_dir=tmp_path, diagnose="off",
                  extra_state=made["extra_state"]) as guard:  # fmt: skip
        for batch in data(8, bad=5):
            guard.step(batch)
    assert again(tmp_path, with_noise, depth="origin").same_loss_bits
    without = again(tmp_path, lambda: {k: v for k, v in with_noise().items() if k != "extra_state"}, depth="origin")
    assert not without.same_loss_bits
    assert any("extra state noise" in note for note in without.notes)


def test_trouble_that_the_optimizer_made_is_in_its_capsule_too(tmp_path: Path) -> None:
    def make_without_eps() -> tuple[Any, Any, Any]:
        model = nn.Linear(3, 1, bias=False)
        return model, torch.optim.Adam(model.parameters(), eps=0.0), lambda model, x: model(x).pow(2).mean()

    torch.manual_seed(2)
    model, optimizer, loss_fn = make_without_eps()
    batch = torch.tensor([[1.0, 2.0, 0.0], [3.0, 1.0, 0.0]])  # the third weight's gradient is nought: 0 / 0 in Adam
    with sg.Guard(model, optimizer, loss_fn, run_dir=tmp_path) as guard:
        for _ in range(4):
            guard.step(batch)
    assert guard.incidents[0].symptom == "nan_param"
    # The weights were found bad a step late; the capsule is of the step that made them so, from before it.
    assert read_capsule(tmp_path / "incidents" / "0001").state["parameters"]["weight"].isfinite().all()
    found = again(tmp_path, make_without_eps, depth="origin")
    assert found.reproduced
    assert found.same_loss_bits
    assert math.isfinite(found.losses[0])
    assert found.diagnosis.phase == "optimizer"


def test_a_replay_leaves_the_random_numbers_of_its_process_alone(tmp_path: Path) -> None:
    train(tmp_path, data(8, bad=5), diagnose="off")
    made = make()
    torch.manual_seed(99)
    before = torch.get_rng_state()
    replay_capsule(tmp_path / "incidents" / "0001", lambda: made, depth="origin")
    assert torch.equal(torch.get_rng_state(), before)

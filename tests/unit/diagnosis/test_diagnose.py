"""A whole diagnosis: the answer, the trials, and nothing changed by it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from steadygrad.detect.observations.observed_run import Suspicion
from steadygrad.diagnosis.diagnose import diagnose
from steadygrad.records.errors import UsageError


class Half(nn.Module):
    """A product that leaves the float16 range for large inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(F.relu(self.first(x)) * 500.0)


def half_replayable(make_replayable: Any) -> Any:
    model = Half()
    with torch.no_grad():
        model.first.weight.abs_()
    batches = [{"x": torch.rand(4, 8), "y": torch.tensor([0, 1, 0, 1])} for _ in range(4)]
    batches[0]["x"][2] *= 400.0

    def loss_fn(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return F.cross_entropy(model(batch["x"]).float(), batch["y"])

    return make_replayable(model, loss_fn, batches, autocast=torch.float16)


def everything(replayable: Any) -> list[torch.Tensor]:
    optimizer = replayable.optimizers[0]
    moments = [v for state in optimizer.state.values() for v in state.values() if isinstance(v, torch.Tensor)]
    return [t.detach().clone() for t in (*replayable.model.parameters(), *replayable.model.buffers(), *moments)]


def test_a_half_precision_overflow_gets_its_op_module_row_cause_and_a_verified_remedy(make_replayable: Any) -> None:
    found = diagnose(half_replayable(make_replayable))
    assert found.origin is not None
    assert found.cause is not None
    assert (found.phase, found.origin.op, found.origin.module) == ("forward", "mul", "")
    assert (found.cause.code, found.cause.slug) == ("DX101", "fp16_overflow")
    assert found.rows == (2,)
    assert {"fp32", "bf16"} <= {trial.remedy.slug for trial in found.remedies}


def test_what_people_try_first_is_tried_and_shown_not_to_help(make_replayable: Any) -> None:
    trials = {trial.remedy.slug: trial for trial in diagnose(half_replayable(make_replayable)).trials}
    assert not trials["clip"].finite
    assert not trials["zero_nan_grads"].verified
    assert "not finite" in trials["clip"].verdict


def test_a_verified_remedy_tells_its_distance_from_float64(make_replayable: Any) -> None:
    found = diagnose(half_replayable(make_replayable))
    widened = next(trial for trial in found.remedies if trial.remedy.slug == "fp32")
    assert widened.loss_gap is not None
    assert widened.loss_gap < 1e-3
    assert widened.gradient_cosine is not None
    assert widened.gradient_cosine > 0.999
    assert widened.steps_followed == 3


def test_a_diagnosis_leaves_weights_moments_gradients_and_random_numbers_as_they_were(make_replayable: Any) -> None:
    replayable = half_replayable(make_replayable)
    replayable.optimizers[0].step()
    before, numbers = everything(replayable), torch.get_rng_state()
    options = copy.deepcopy(
        [{k: v for k, v in g.items() if k != "params"} for g in replayable.optimizers[0].param_groups]
    )
    diagnose(replayable)
    assert all(torch.equal(a, b) for a, b in zip(before, everything(replayable), strict=True))
    assert torch.equal(numbers, torch.get_rng_state())
    assert options == [{k: v for k, v in g.items() if k != "params"} for g in replayable.optimizers[0].param_groups]
    assert all(p.dtype is torch.float32 for p in replayable.model.parameters())


def test_the_origin_alone_tries_no_remedy(make_replayable: Any) -> None:
    found = diagnose(half_replayable(make_replayable), depth="origin")
    assert found.cause is not None
    assert found.trials == ()


def test_a_step_that_is_finite_in_every_replay_is_called_a_fault_that_does_not_repeat(make_replayable: Any) -> None:
    batch = {"x": torch.randn(4, 2), "y": torch.randn(4, 1)}
    replayable = make_replayable(nn.Linear(2, 1), lambda m, b: F.mse_loss(m(b["x"]), b["y"]), [batch] * 3)
    found = diagnose(replayable)
    assert found.cause is not None
    assert found.cause.slug == "transient_fault"
    assert found.reproduced == (0, 3)
    assert [trial.remedy.slug for trial in found.remedies][:1] == ["recompute_step"]


def test_skipping_is_not_verified_when_the_steps_after_it_fail_too(make_replayable: Any) -> None:
    def loss_fn(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return model(batch).pow(2).sum().sqrt()

    batches = [torch.zeros(3, 2) for _ in range(8)]
    found = diagnose(make_replayable(nn.Linear(2, 1, bias=False), loss_fn, batches))
    trials = {trial.remedy.slug: trial for trial in found.trials}
    assert not trials["skip_batch"].verified
    assert trials["eps"].verified


def test_an_unknown_depth_is_refused_with_the_words_that_work(make_replayable: Any) -> None:
    with pytest.raises(UsageError, match="expected 'origin' or 'full'"):
        diagnose(half_replayable(make_replayable), depth="deep")


def test_the_changed_line_is_printed_where_the_fix_is_in_the_users_code(make_replayable: Any) -> None:
    def loss_fn(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        count = batch["count"]
        return (model(batch["x"])[:, 0] / count).mean()

    batch = {"x": torch.randn(3, 2), "count": torch.tensor([1.0, 0.0, 2.0])}
    found = diagnose(make_replayable(nn.Linear(2, 1), loss_fn, [batch] * 2))
    floor = next(trial for trial in found.remedies if trial.remedy.slug == "eps")
    assert floor.remedy.code_change == "return (model(batch['x'])[:, 0] / count.clamp_min(1e-06)).mean()"


def test_the_model_compiled_or_not_is_diagnosed_eagerly(make_replayable: Any) -> None:
    model = nn.Linear(2, 1)
    compiled = torch.compile(model, backend="eager")

    def loss_fn(_model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return torch.log(compiled(batch) * 0.0).mean()

    found = diagnose(make_replayable(model, loss_fn, [torch.randn(3, 2)] * 2))
    assert found.origin is not None
    assert (found.origin.op, found.phase) == ("log", "loss")


def test_of_a_step_that_does_not_repeat_no_change_is_called_a_cure(make_replayable: Any) -> None:
    """Whatever is changed, a sound step is sound: only doing it again and doing without it mean anything."""
    model = nn.Linear(3, 1)
    replayable = make_replayable(model, lambda m, b: m(b).square().mean(), [torch.randn(4, 3) for _ in range(3)])
    found = diagnose(replayable, suspicion=Suspicion(symptom="nan_loss", step=0, kind="non_finite"))
    assert found.reproduced == (0, 3)
    assert {trial.remedy.slug for trial in found.trials} <= {"recompute_step", "skip_batch"}


def test_a_floor_is_raised_where_the_smallest_leaves_the_steps_after_it_sick(make_replayable: Any) -> None:
    model = nn.Linear(1, 1, bias=False)
    model.register_buffer("scale", torch.zeros(()))

    def loss_fn(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        if not model.scale:
            model.scale.copy_(1.0 / batch.std(correction=0))
        return (model(batch) * model.scale).pow(6).mean()

    with torch.no_grad():
        model.weight.fill_(1.0)
    batches = [torch.ones(4, 1), torch.full((4, 1), 5.0), torch.full((4, 1), 5.0)]
    found = diagnose(make_replayable(model, loss_fn, batches, optimizer=torch.optim.SGD(model.parameters(), lr=1e-30)))
    floors = [trial for trial in found.trials if trial.remedy.slug == "eps"]
    assert [trial.verified for trial in floors] == [True, False]
    assert floors[0].remedy.change.startswith("a higher floor")


def test_one_exploding_batch_is_not_called_a_divergence_when_other_batches_are_calm(make_replayable: Any) -> None:
    model = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(1.0)
    batches = [torch.full((3, 2), size) for size in (-9.0, -8.0, -1.0, 100.0, -9.0, -8.0)]

    def loss_fn(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return torch.exp(model(batch)).mean()

    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    found = diagnose(make_replayable(model, loss_fn, batches, 3, optimizer=optimizer))
    assert found.cause is not None
    assert found.cause.slug == "exp_overflow"


def test_a_tensor_of_eight_bits_is_looked_at_and_its_overflow_is_named(make_replayable: Any) -> None:
    def loss_fn(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        hidden = model(batch)
        stored = hidden.detach().to(torch.float8_e4m3fnuz)  # the largest it holds is 240, and there is no infinity
        return (hidden + (stored.to(torch.float32) - hidden).detach()).mean()

    model = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        model.weight.fill_(1.0)
    batch = torch.ones(4, 2)
    batch[2] = 500.0
    found = diagnose(make_replayable(model, loss_fn, [batch]))
    assert found.cause is not None
    assert found.cause.slug == "fp8_overflow"
    assert found.rows == (2,)


class Normed(torch.optim.Optimizer):
    """An optimizer of one's own that divides by a norm which may be zero."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                direction = parameter.grad / parameter.grad.norm()
                parameter -= group["lr"] * direction


def test_a_repair_is_tried_inside_an_optimizer_of_the_users_own(make_replayable: Any) -> None:
    model = nn.Linear(2, 1, bias=False)
    replayable = make_replayable(model, lambda m, b: m(b).sum(), [torch.zeros(3, 2), torch.ones(3, 2)],
                           optimizer=Normed(model.parameters()))  # fmt: skip
    found = diagnose(replayable)
    assert found.phase == "optimizer"
    assert found.cause is not None
    assert found.cause.slug == "zero_division"
    assert "eps" in [trial.remedy.slug for trial in found.remedies]


def test_zero_times_an_infinity_of_the_batch_is_a_logarithm_of_zero(make_replayable: Any) -> None:
    def loss_fn(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return F.kl_div(torch.log_softmax(model(batch["x"]), -1), batch["logp"], log_target=True, reduction="sum")

    logp = torch.log_softmax(torch.randn(4, 3), -1)
    logp[1, 2] = -torch.inf  # cached logits of the top few
    found = diagnose(make_replayable(nn.Linear(2, 3), loss_fn, [{"x": torch.randn(4, 2), "logp": logp}]))
    assert found.cause is not None
    assert found.cause.slug == "log_zero"

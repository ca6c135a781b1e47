"""Programs off the beaten track: complex numbers, astronomic float64, determinants, backward code of one's own."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from steadygrad.diagnosis.replay.replay_observation import absmax, norm_of


def sgd(model: nn.Module, lr: float = 1e-2) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=lr)


def slugs(found: Any) -> set[str]:
    return {trial.remedy.slug for trial in found.remedies}


def test_magnitudes_are_taken_in_the_tensors_own_range_and_of_both_parts_of_a_complex_number() -> None:
    assert absmax(torch.tensor([1e57, -2e57], dtype=torch.float64)) == 2e57
    assert absmax(torch.tensor([60000.0], dtype=torch.float16)) == 60000.0
    assert math.isnan(absmax(torch.tensor([complex(1.0, math.nan)])))
    assert absmax(torch.tensor([complex(1.0, -5.0)])) == 5.0
    assert norm_of(torch.tensor([complex(3.0, 4.0)])) == 5.0


def test_a_float64_loss_beyond_float32_is_no_trouble(run_case: Any, make_case: Any) -> None:
    class Mass(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.log_mass = nn.Parameter(torch.tensor([1.0], dtype=torch.float64))

    random = torch.Generator().manual_seed(0)
    batches = [1e30 * (1 + torch.rand(4, generator=random, dtype=torch.float64)) for _ in range(8)]
    model = Mass()
    case = make_case(
        model, lambda m, b: (1e30 * m.log_mass.exp() - b).square().sum(), batches, torch.optim.Adam(model.parameters())
    )
    assert run_case(case).suspicion is None


def test_a_nan_in_one_part_of_a_complex_batch_is_told_with_its_row(run_case: Any, make_case: Any) -> None:
    random = torch.Generator().manual_seed(0)
    batches = [torch.complex(*(torch.randn(5, 3, generator=random) for _ in range(2))) for _ in range(5)]
    batches[3][2, 1] = complex(0.5, math.nan)
    model = nn.Linear(3, 1)
    found = run_case(make_case(model, lambda m, b: m(b.real).square().mean() + b.abs().mean(), batches, sgd(model)))
    assert found.suspicion.step == 3
    assert (found.diagnosis.phase, found.diagnosis.cause.slug, found.diagnosis.rows) == ("data", "bad_input", (2,))


def test_the_logarithm_of_a_singular_determinant_is_named_and_a_diagonal_helps(run_case: Any, make_case: Any) -> None:
    model = nn.Linear(3, 3, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.eye(3))
    random = torch.Generator().manual_seed(0)
    batches = [torch.randn(4, 3, 3, generator=random) for _ in range(5)]
    batches[3][1] = 0.0

    def slate(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        kernel = model(x) @ model(x).transpose(1, 2)
        return 1e-3 * -torch.linalg.slogdet(kernel).logabsdet.mean()

    found = run_case(make_case(model, slate, batches, sgd(model))).diagnosis
    assert (found.cause.slug, found.origin.op, found.rows) == ("log_zero", "linalg_slogdet", (1,))
    assert {"eps", "drop_rows"} <= slugs(found)


class Undone(torch.autograd.Function):
    """Recovers its input from its output in backward: not where the gain is zero."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
        out = x * gain
        ctx.save_for_backward(out, gain)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        out, gain = ctx.saved_tensors
        x = out / gain  # the division
        return grads[0] * gain, (grads[0] * x).sum(0)


def test_a_division_in_backward_code_of_ones_own_is_named_and_operated_on(run_case: Any, make_case: Any) -> None:
    class Gain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.gain = nn.Linear(3, 2), nn.Parameter(torch.tensor([1.0, 0.0]))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return Undone.apply(self.body(x), self.gain)

    torch.manual_seed(0)
    model = Gain()
    batches = [(torch.randn(4, 3), torch.randn(4, 2)) for _ in range(5)]
    found = run_case(make_case(model, lambda m, b: F.mse_loss(m(b[0]), b[1]), batches, sgd(model))).diagnosis
    assert (found.phase, found.origin.op, found.cause.slug) == ("backward", "div", "zero_division")
    assert found.origin.code_line == "x = out / gain  # the division"
    assert "eps" in slugs(found)


class Ranged(nn.Module):
    """Scales by a range that an observer writes; without one it is still what it was at the start."""

    def __init__(self, *, observes: bool) -> None:
        super().__init__()
        self.body, self.observes = nn.Linear(3, 1), observes
        self.register_buffer("low", torch.tensor(math.inf))
        self.register_buffer("high", torch.tensor(-math.inf))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.observes:
            self.low, self.high = torch.minimum(self.low, x.min()), torch.maximum(self.high, x.max())
        return self.body((x - self.low) / (self.high - self.low))


def test_a_range_that_was_never_measured_is_reported_as_uninitialised(run_case: Any, make_case: Any) -> None:
    random = torch.Generator().manual_seed(0)
    batches = [(torch.randn(4, 3, generator=random), torch.randn(4, 1, generator=random)) for _ in range(4)]

    def seen(observes: bool) -> Any:
        torch.manual_seed(0)
        model = Ranged(observes=observes)
        return run_case(make_case(model, lambda m, b: F.mse_loss(m(b[0]), b[1]), batches, sgd(model)))

    assert seen(observes=True).suspicion is None
    found = seen(observes=False).diagnosis
    assert (found.phase, found.cause.slug, found.origin.module) == ("state", "uninitialised", "")
    assert slugs(found) == {"init"}


def test_a_row_that_fails_alone_for_another_reason_is_not_named(run_case: Any, make_case: Any) -> None:
    """Sorted by time, so no op shows the rows; and a row without an event divides by zero when it is alone."""
    random = torch.Generator().manual_seed(0)
    batches = [(torch.randn(6, 3, generator=random), torch.rand(6, generator=random), torch.ones(6)) for _ in range(5)]
    batches[3][0][2] = 400.0
    batches[3][1][2] = 2.0
    batches[3][2][4] = 0.0
    model = nn.Linear(3, 1)
    with torch.no_grad():
        model.weight.fill_(0.1)

    def cox(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> torch.Tensor:
        x, time, event = batch
        order = time.argsort(descending=True)
        risk, event = model(x)[order, 0], event[order]
        return -((risk - risk.exp().cumsum(0).log()) * event).sum() / event.sum()

    found = run_case(make_case(model, cox, batches, sgd(model, 1e-4))).diagnosis
    assert (found.cause.slug, found.rows) == ("exp_overflow", (2,))


def test_clipping_a_rate_that_is_far_too_high_is_not_called_a_cure(run_case: Any, make_case: Any) -> None:
    def jump(case: Any, index: int) -> None:
        if index == 5:
            case.optimizer.param_groups[0]["lr"] = 3.0

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    batches = [(x := torch.randn(8, 4), x[:, :1] - x[:, 1:2]) for _ in range(16)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    case = make_case(model, lambda m, b: F.mse_loss(m(b[0]), b[1]), batches, optimizer, before_step=jump)
    found = run_case(case).diagnosis
    assert found.cause.slug == "lr_divergence"
    assert "lr_down" in slugs(found)
    assert "clip" not in slugs(found)


def test_two_factors_that_both_start_at_zero_are_cured_by_drawing_them(run_case: Any, make_case: Any) -> None:
    class Factors(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down, self.up = nn.Parameter(torch.zeros(2, 3)), nn.Parameter(torch.zeros(1, 2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.down.T @ self.up.T

    class Adapted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base, self.lora = nn.Linear(3, 1), Factors()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.base(x) + self.lora(x)

    torch.manual_seed(0)
    model = Adapted()
    batches = [(torch.randn(4, 3), torch.randn(4, 1)) for _ in range(6)]
    found = run_case(make_case(model, lambda m, b: F.mse_loss(m(b[0]), b[1]), batches, sgd(model))).diagnosis
    assert (found.cause.slug, found.origin.module) == ("no_trainable_grad", "lora")
    assert slugs(found) == {"init"}
    assert bool((model.lora.up == 0).all())  # the trial was taken back


def test_a_weight_too_far_from_zero_for_float32_is_told_what_would_move_it(run_case: Any, make_case: Any) -> None:
    class Place(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.place, self.body = nn.Parameter(torch.full((3,), 6.4e6)), nn.Linear(3, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.body(x - (self.place - 6.4e6))

    torch.manual_seed(0)
    model = Place()
    batches = [(torch.randn(4, 3), torch.randn(4, 1)) for _ in range(6)]
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    found = run_case(make_case(model, lambda m, b: F.mse_loss(m(b[0]), b[1]), batches, optimizer)).diagnosis
    assert (found.cause.slug, found.origin.tensor) == ("lost_update", "place")
    assert slugs(found) == {"fp64"}


@pytest.mark.parametrize("reentrant", [True, False])
def test_what_a_checkpoint_recomputes_is_forward_and_its_line_is_told(
    reentrant: bool, run_case: Any, make_case: Any
) -> None:
    class Length(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(3, 2, bias=False)

        def core(self, x: torch.Tensor) -> torch.Tensor:
            return torch.sqrt(self.body(x).pow(2).sum(-1, keepdim=True))  # the root

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(self.core, x.requires_grad_(), use_reentrant=reentrant)

    torch.manual_seed(0)
    model = Length()
    batches = [(torch.randn(4, 3), torch.randn(4, 1)) for _ in range(4)]
    batches[2][0][1] = 0.0
    found = run_case(make_case(model, lambda m, b: F.mse_loss(m(b[0].clone()), b[1]), batches, sgd(model))).diagnosis
    assert (found.phase, found.origin.op, found.cause.slug) == ("backward", "sqrt", "sqrt_grad_at_zero")
    assert found.origin.code_line.endswith("# the root")
    assert found.rows == (1,)
    assert "eps" in slugs(found)


class FromZero(torch.optim.Optimizer):
    """Counts its steps from zero, so the first two divisions are by a plain zero, on two lines."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 1e-2})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state |= {"t": 0, "m": torch.zeros_like(parameter), "v": torch.zeros_like(parameter)}
                state["m"].lerp_(parameter.grad, 0.1)
                state["v"].lerp_(parameter.grad.square(), 0.01)
                mean = state["m"] / (1 - 0.9 ** state["t"])  # the division
                spread = state["v"] / (1 - 0.99 ** state["t"])
                parameter.sub_(group["lr"] * mean / (spread.sqrt() + 1e-8))
                state["t"] += 1


def test_a_plain_zero_under_a_division_is_seen_and_its_twin_on_the_next_line_too(run_case: Any, make_case: Any) -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    batches = [(torch.randn(4, 3), torch.randn(4, 1)) for _ in range(4)]
    case = make_case(model, lambda m, b: F.mse_loss(m(b[0]), b[1]), batches, FromZero(model.parameters()))
    found = run_case(case).diagnosis
    assert (found.phase, found.origin.op, found.cause.slug) == ("optimizer", "div", "zero_division")
    assert found.origin.code_line.endswith("# the division")
    assert "eps" in slugs(found)


def test_a_learning_rate_of_infinity_is_named_and_the_usual_one_tried(run_case: Any, make_case: Any) -> None:
    def schedule(case: Any, index: int) -> None:
        case.optimizer.param_groups[0]["lr"] = math.inf if index == 3 else 1e-2

    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    batches = [(torch.randn(4, 3), torch.randn(4, 1)) for _ in range(6)]
    case = make_case(model, lambda m, b: F.mse_loss(m(b[0]), b[1]), batches, sgd(model), before_step=schedule)
    seen = run_case(case)
    assert seen.suspicion.step == 3
    assert (seen.diagnosis.phase, seen.diagnosis.cause.slug) == ("optimizer", "lr_divergence")
    assert "lr_down" in slugs(seen.diagnosis)


def test_a_nan_outside_the_domain_that_where_discarded_is_a_trap_and_no_edge(run_case: Any, make_case: Any) -> None:
    class Lens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.index = nn.Parameter(torch.tensor(1.5))

        def forward(self, sine: torch.Tensor) -> torch.Tensor:
            bent = self.index * sine
            return torch.where(bent.abs() < 1, torch.asin(bent), torch.zeros_like(bent))

    model = Lens()
    batches = [torch.full((4,), 0.3) + 0.01 * i for i in range(5)]
    batches[3][2] = 0.9
    found = run_case(make_case(model, lambda m, b: m(b).square().mean(), batches, sgd(model))).diagnosis
    assert (found.phase, found.origin.op, found.cause.slug, found.rows) == ("backward", "asin", "where_grad_trap", (2,))
    assert "double_where" in slugs(found)


def test_functions_that_grow_like_an_exponential_overflow_like_one(run_case: Any, make_case: Any) -> None:
    for grow in (torch.i0, torch.special.i1, lambda x: 10.0**x):
        torch.manual_seed(0)
        model = nn.Linear(3, 1, bias=False)
        with torch.no_grad():
            model.weight.fill_(1.0)
        batches = [torch.rand(4, 3) for _ in range(4)]
        batches[2][1] = 60.0
        found = run_case(make_case(model, lambda m, b, grow=grow: grow(m(b)).log1p().mean(), batches, sgd(model, 1e-4)))
        assert (found.diagnosis.cause.slug, found.diagnosis.rows) == ("exp_overflow", (1,))


def test_a_flipped_bit_in_a_buffer_is_a_fault_and_a_bad_value_in_one_is_poison(run_case: Any, make_case: Any) -> None:
    class Placed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(3, 1)
            self.register_buffer("places", 0.1 * torch.arange(300.0).reshape(100, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.body(x + self.places[:4]).square()

    def cause(value: float) -> str:
        def write(case: Any, index: int) -> None:
            if index == 3:
                case.model.places[1, 1] = value

        torch.manual_seed(0)
        model = Placed()
        batches = [torch.rand(4, 3) for _ in range(5)]
        case = make_case(model, lambda m, b: m(b).mean(), batches, sgd(model, 1e-4), before_step=write)
        return str(run_case(case).diagnosis.cause.slug)

    assert cause(2.0**127) == "transient_fault"
    assert cause(math.nan) == "poisoned_state"


def test_the_argument_that_is_meant_gets_the_floor_or_the_bound(run_case: Any, make_case: Any) -> None:
    cases = [
        (lambda v: torch.polygamma(1, v), 0.0, "zero_division", "eps"),
        (lambda v: torch.fmod(torch.ones_like(v), v), 0.0, "zero_division", "eps"),
        (torch.lgamma, 0.0, "log_zero", "eps"),
        (torch.logit, 1.0, "log_zero", "clamp"),
        (lambda v: 7.0**v, 400.0, "exp_overflow", "clamp"),
        (torch.acosh, 0.5, "domain_edge_grad", "clamp"),
    ]
    for function, bad, cause, repair in cases:
        torch.manual_seed(0)
        model = nn.Linear(3, 1)
        low = 1.2 if function is torch.acosh else 0.3
        batches = [(torch.rand(4, 3), torch.rand(4, 1) * 0.5 + low) for _ in range(5)]
        batches[3][1][2] = bad

        def loss(model: nn.Module, batch: Any, function: Any = function) -> torch.Tensor:
            return (function(batch[1]) - model(batch[0])).square().mean()

        found = run_case(make_case(model, loss, batches, sgd(model, 1e-4))).diagnosis
        assert (found.cause.slug, found.rows) == (cause, (2,))
        assert repair in slugs(found)

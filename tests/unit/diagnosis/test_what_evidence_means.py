"""What the evidence of a failing step means, and what it does not: a test for each rule and for its near miss."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from steadygrad.diagnosis.locate.origin import find_bad_origin, only_of_parameters
from steadygrad.diagnosis.trace.tracer import Tracer


def sgd(model: nn.Module, lr: float = 1e-2) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=lr)


def slugs(found: Any) -> set[str]:
    return {trial.remedy.slug for trial in found.remedies}


def bad_origin_of(loss: Any) -> str:
    """The op in which the first bad value of this loss was made."""
    tracer = Tracer(nn.Identity())
    with tracer.tracing():
        value = loss()
    tracer.paused = True
    sink = tracer.sink(value)
    assert sink is not None
    tracer.trace.finish()
    bad_origin = find_bad_origin(tracer.trace, [sink])
    assert bad_origin is not None
    assert bad_origin.record is not None
    return bad_origin.record.op


# -- a mask written into memory that holds a NaN elsewhere


def masked_in_place(scores: Tensor, at: Any) -> Tensor:
    scores[at] = -torch.inf
    return scores


def test_a_mask_written_beside_a_nan_did_not_make_it() -> None:
    x = torch.tensor([[0.0, 0.0], [1.0, 2.0]])
    assert bad_origin_of(lambda: masked_in_place(x / x.sum(1, keepdim=True), (0, 1)).softmax(-1).sum()) == "div"


def test_an_infinity_written_over_a_nan_is_followed_to_its_own_maker() -> None:
    x = torch.tensor([0.0, 200.0])
    assert bad_origin_of(lambda: (x / x.new_zeros(())).copy_(x.exp()).sum()) == "exp"


# -- an eps that its type cannot hold


def zero_rows(optimizer: Any, dtype: torch.dtype, run_case: Any, make_case: Any) -> Any:
    torch.manual_seed(0)
    model = nn.EmbeddingBag(12, 3).to(dtype)
    batches = [torch.randint(0, 6, (4, 2)) for _ in range(4)]
    loss = lambda m, b: m(b).float().square().mean()  # noqa: E731
    return run_case(make_case(model, loss, batches, optimizer(model.parameters()))).diagnosis


@pytest.mark.parametrize(
    ("optimizer", "dtype"),
    [
        (lambda p: torch.optim.RMSprop(p, lr=1e-3, eps=1e-46), torch.float32),
        (lambda p: torch.optim.Adam(p, lr=1e-3, eps=1e-60), torch.bfloat16),
    ],
)
def test_an_eps_that_is_zero_in_the_type_of_the_state_is_named_whatever_the_type(
    optimizer: Any, dtype: torch.dtype, run_case: Any, make_case: Any
) -> None:
    found = zero_rows(optimizer, dtype, run_case, make_case)
    assert (found.phase, found.cause.slug) == ("optimizer", "optimizer_eps_underflow")
    assert "is zero there" in found.because
    assert "optimizer_eps" in slugs(found)


def test_no_eps_at_all_is_a_plain_division_by_zero(run_case: Any, make_case: Any) -> None:
    found = zero_rows(lambda p: torch.optim.RMSprop(p, lr=1e-3, eps=0.0), torch.float32, run_case, make_case)
    assert (found.phase, found.cause.slug) == ("optimizer", "zero_division")


# -- a bad value that was computed from weights alone


class Whitened(nn.Module):
    """Directions divided by the length of a learned axis."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.axis = nn.Linear(3, 3), nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) / self.axis.norm()


def test_a_weight_that_alone_made_the_bad_value_is_restored_from_before(run_case: Any, make_case: Any) -> None:
    torch.manual_seed(0)
    model = Whitened()

    def import_axis(case: Any, step: int) -> None:
        if step == 3:
            case.model.axis.data.zero_()

    batches = [(torch.randn(4, 3), torch.randn(4, 3)) for _ in range(8)]
    case = make_case(model, lambda m, b: F.mse_loss(m(b[0]), b[1]), batches, sgd(model), before_step=import_axis)
    found = run_case(case).diagnosis
    assert (found.origin.op, found.cause.slug) == ("div", "zero_division")
    restored = next(trial for trial in found.remedies if trial.remedy.slug == "restore_weight")
    assert "axis" in restored.remedy.change
    assert restored.steps_followed > 0


def test_weights_that_are_singular_from_the_first_step_are_drawn_anew(run_case: Any, make_case: Any) -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix = nn.Parameter(torch.ones(3, 3))

        def forward(self, x: Tensor) -> Tensor:
            return (x @ self.mix).square().mean() - torch.linalg.slogdet(self.mix).logabsdet

    model = Mixed()
    found = run_case(make_case(model, lambda m, b: m(b), [torch.randn(4, 3) for _ in range(6)], sgd(model, 1e-3)))
    assert found.diagnosis.cause.slug == "log_zero"
    assert "init" in slugs(found.diagnosis)
    assert "restore_weight" not in slugs(found.diagnosis)


def test_what_a_batch_has_a_part_in_is_no_matter_of_weights_alone() -> None:
    weight, x = nn.Parameter(torch.ones(3)), torch.ones(3)
    tracer = Tracer(nn.Identity())
    tracer.trace.name(weight, "parameter", "weight")
    tracer.trace.name(x, "batch", "x")
    with tracer.tracing():
        (x * weight).log()
        x / weight.exp()
        weight / x
        (weight + torch.rand(3)).log()
    log, div, other, noisy = [r for r in tracer.trace.records if r.op in ("log", "div")]
    assert only_of_parameters(tracer.trace, log) == frozenset()
    assert only_of_parameters(tracer.trace, div) == {"weight"}
    assert only_of_parameters(tracer.trace, other) == frozenset()
    assert only_of_parameters(tracer.trace, noisy) == frozenset()


# -- values that forward discards


class Learned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.scale = nn.Linear(3, 1), nn.Parameter(torch.tensor(1.5))


def diagnosed(loss: Any, spoil: Any, run_case: Any, make_case: Any, *, steps: int = 8) -> Any:
    torch.manual_seed(0)
    model = Learned()
    batches = [{"x": torch.rand(5, 3) + 0.1, "y": torch.rand(5) + 0.5} for _ in range(steps)]
    spoil(batches[3])
    return run_case(make_case(model, loss, batches, sgd(model, 1e-3))).diagnosis


def test_the_op_that_made_a_discarded_nan_is_named_and_not_the_one_that_met_it(run_case: Any, make_case: Any) -> None:
    def loss(model: Any, batch: Any) -> Tensor:
        root = torch.sqrt(batch["y"])
        scaled = root * model.scale
        kept = torch.where(batch["y"] > 0, scaled, torch.zeros_like(scaled))
        return (model.body(batch["x"]).squeeze(1) - kept).square().mean()

    def spoil(batch: Any) -> None:
        batch["y"][2] = -4.0

    found = diagnosed(loss, spoil, run_case, make_case)
    assert (found.phase, found.origin.op, found.cause.slug) == ("backward", "sqrt", "where_grad_trap")
    assert found.origin.code_line == 'root = torch.sqrt(batch["y"])'
    assert found.rows == (2,)
    assert {"double_where", "clamp"} <= slugs(found)
    assert "eps" not in slugs(found)


def unbounded(batch: Any) -> None:
    batch["y"][2] = 300.0


def test_an_exponential_that_a_bound_cuts_off_has_overflowed(run_case: Any, make_case: Any) -> None:
    def loss(model: Any, batch: Any) -> Tensor:
        weight = torch.exp(model.scale * batch["y"])
        return (torch.minimum(weight, weight.new_full((), 10.0)) * model.body(batch["x"]).squeeze(1).square()).mean()

    found = diagnosed(loss, unbounded, run_case, make_case)
    assert (found.origin.op, found.cause.slug, found.rows) == ("exp", "exp_overflow", (2,))
    assert "clamp" in slugs(found)


def test_an_exponential_in_a_branch_that_is_not_taken_is_a_trap(run_case: Any, make_case: Any) -> None:
    def loss(model: Any, batch: Any) -> Tensor:
        z = model.scale * batch["y"]
        weight = torch.where(z > 30.0, z, torch.exp(z))
        return (weight * model.body(batch["x"]).squeeze(1).square()).mean()

    found = diagnosed(loss, unbounded, run_case, make_case)
    assert (found.origin.op, found.cause.slug) == ("exp", "where_grad_trap")
    assert "double_where" in slugs(found)


# -- rows that belong together


def test_a_matrix_of_neighbours_makes_a_batch_indivisible(run_case: Any, make_case: Any) -> None:
    def loss(model: Any, batch: Any) -> Tensor:
        degree = batch["adj"].sum(1, keepdim=True)
        mean = (batch["adj"] @ batch["x"]) / degree
        return (model(mean).squeeze(1) - batch["y"]).square().mean()

    torch.manual_seed(0)
    batches = [{"x": torch.rand(9, 3), "adj": torch.ones(9, 9), "y": torch.rand(9)} for _ in range(6)]
    batches[3]["adj"][4] = 0.0
    model = nn.Linear(3, 1)
    found = run_case(make_case(model, loss, batches, sgd(model))).diagnosis
    assert (found.origin.op, found.cause.slug, found.rows) == ("div", "zero_division", None)
    assert any("'adj' says how its 9 rows are connected" in note for note in found.notes)


def test_as_many_features_as_rows_do_not_make_a_batch_indivisible(run_case: Any, make_case: Any) -> None:
    torch.manual_seed(0)
    batches = [{"x": torch.rand(6, 6), "y": torch.rand(6)} for _ in range(6)]
    batches[3]["x"][4] = 0.0
    model = nn.Linear(6, 1, bias=False)

    def loss(model: Any, batch: Any) -> Tensor:
        return (torch.log(model(batch["x"]).square().squeeze(1)) - batch["y"]).square().mean()

    found = run_case(make_case(model, loss, batches, sgd(model))).diagnosis
    assert (found.origin.op, found.rows) == ("log", (4,))


# -- a choice that passes no gradient


class Sorted(nn.Module):
    """Keeps the best of its inputs by a learned score, which is used for nothing else."""

    def __init__(self, keep: Any) -> None:
        super().__init__()
        self.score, self.out, self.keep = nn.Linear(4, 1), nn.Linear(4, 1), keep

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.keep(self.score(x).squeeze(-1), x)).square().mean()


def by_sorting(scores: Tensor, x: Tensor) -> Tensor:
    return torch.take_along_dim(x, scores.sort(-1, descending=True).indices[:, :2, None], 1)


def by_place(scores: Tensor, x: Tensor) -> Tensor:
    return x[torch.arange(len(x)), scores.max(1).indices]


def all_in_one(scores: Tensor, x: Tensor) -> Tensor:
    return x.flatten(0, 1).index_select(0, scores.flatten().topk(3).indices)


def by_count(scores: Tensor, x: Tensor) -> Tensor:
    return x * (1 + scores.topk(2, -1).indices.sum())


@pytest.mark.parametrize(
    ("keep", "helped"), [(by_sorting, True), (by_place, True), (all_in_one, True), (by_count, False)]
)
def test_scores_that_only_pick_learn_by_a_soft_choice_where_what_they_pick_is_seen(
    keep: Any, helped: bool, run_case: Any, make_case: Any
) -> None:
    torch.manual_seed(0)
    model = Sorted(keep)
    batches = [torch.randn(3, 6, 4) for _ in range(10)]
    found = run_case(make_case(model, lambda m, b: m(b), batches, sgd(model))).diagnosis
    assert found.cause.slug == "no_trainable_grad"
    assert found.because.startswith("score.weight, score.bias")
    assert ("straight_through" in slugs(found)) is helped


# -- sparse gradients


def test_a_dense_op_behind_sparse_gradients_is_found(run_case: Any, make_case: Any) -> None:
    class Pairs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(9, 3, sparse=True)

        def forward(self, pairs: Tensor) -> Tensor:
            a, b = self.table(pairs[:, 0]), self.table(pairs[:, 1])
            return (a - b).norm(dim=1).mean()

    torch.manual_seed(0)
    model = Pairs()
    batches = [torch.stack([torch.arange(4), torch.arange(4, 8)], 1) for _ in range(6)]
    batches[3][2, 1] = batches[3][2, 0]
    with torch.no_grad():
        model.table.weight[8] = 0.0

    def loss(model: Any, pairs: Tensor) -> Tensor:
        length = (model.table(pairs[:, 0]) - model.table(pairs[:, 1])).square().sum(1)
        return torch.sqrt(length).mean()

    found = run_case(make_case(model, loss, batches, sgd(model))).diagnosis
    assert (found.phase, found.origin.op, found.cause.slug) == ("backward", "sqrt", "sqrt_grad_at_zero")
    assert found.rows == (2,)


# -- a divergence is judged from before it began


def test_a_lower_rate_is_tried_from_where_the_loss_was_calm() -> None:
    from steadygrad import Guard

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0, momentum=0.9)
    batch = torch.randn(8, 6)
    with Guard(model, optimizer, lambda m, b: (m(b).squeeze(1) - b.sum(1)).square().mean()) as guard:
        for _ in range(12):
            guard.step(batch)
            if guard.incidents:
                break
    found = guard.incidents[0].diagnosis
    assert found is not None
    assert found.cause is not None
    assert found.cause.slug == "lr_divergence"
    assert "lr_down" in slugs(found)


class TaskWeight(nn.Module):
    """The learned weight of a task that is done: its log variance falls without end."""

    def __init__(self) -> None:
        super().__init__()
        self.log_variance = nn.Parameter(torch.zeros(1))

    def forward(self, loss: torch.Tensor) -> torch.Tensor:
        return (torch.exp(-self.log_variance) * loss + self.log_variance).sum()


def test_a_loss_that_falls_far_below_zero_has_not_diverged() -> None:
    from steadygrad import Guard

    model = TaskWeight()
    optimizer = torch.optim.SGD(model.parameters(), lr=10.0)
    with Guard(model, optimizer, lambda m, b: m(b)) as guard:
        for _ in range(12):
            guard.step(torch.zeros(1))
            if guard.incidents:
                break
    found = guard.incidents[0].diagnosis
    assert found is not None
    assert found.cause is not None
    assert (found.origin.op, found.cause.slug) == ("exp", "exp_overflow")
    assert found.origin.code_line == "return (torch.exp(-self.log_variance) * loss + self.log_variance).sum()"

"""When what was seen of the steps deserves the clinic, and when it does not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from steadygrad.detect.patterns.gradient_changed_after_backward import grown_gradients
from steadygrad.diagnosis.replay.replay_observation import Gradient, ReplayObservation


def regression(steps: int, *, rows: int = 6) -> list[dict[str, torch.Tensor]]:
    random = torch.Generator().manual_seed(1)
    return [
        {"x": torch.randn(rows, 4, generator=random), "y": torch.randn(rows, 1, generator=random)} for _ in range(steps)
    ]


def loss_fn(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return F.mse_loss(model(batch["x"]), batch["y"])


def two_layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def test_a_healthy_run_raises_nothing(run_case: Any, make_case: Any) -> None:
    model = two_layers()
    assert run_case(make_case(model, loss_fn, regression(8), torch.optim.AdamW(model.parameters()))).suspicion is None


def test_the_first_overflows_of_a_dynamic_scaler_are_normal_life(run_case: Any, make_case: Any) -> None:
    model = two_layers()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**26)
    case = make_case(
        model,
        loss_fn,
        regression(10),
        torch.optim.SGD(model.parameters(), lr=1e-2),
        autocast=torch.float16,
        scaler=scaler,
    )
    assert run_case(case).suspicion is None
    assert scaler.get_scale() < 2.0**26


def test_a_batch_the_loop_itself_refused_is_not_reported(run_case: Any, make_case: Any) -> None:
    model, batches = two_layers(), regression(8)
    batches[4]["x"][1] = float("nan")
    case = make_case(model, loss_fn, batches, torch.optim.AdamW(model.parameters()), skip_nonfinite="loss")
    assert run_case(case).suspicion is None


def test_a_loop_that_refuses_every_batch_from_some_step_on_is_reported_from_there(
    run_case: Any, make_case: Any
) -> None:
    model, batches = two_layers(), regression(12)
    for batch in batches[4:]:
        batch["x"][1] = float("nan")
    case = make_case(model, loss_fn, batches, torch.optim.AdamW(model.parameters()), skip_nonfinite="loss")
    suspicion = run_case(case, depth="origin").suspicion
    assert suspicion is not None
    assert suspicion.step == 4


def test_a_parameter_that_is_never_used_is_not_reported(run_case: Any, make_case: Any) -> None:
    model = nn.ModuleDict({"used": nn.Linear(4, 1), "unused": nn.Linear(4, 1)})
    case = make_case(
        model, lambda m, b: F.mse_loss(m["used"](b["x"]), b["y"]), regression(6), torch.optim.AdamW(model.parameters())
    )
    assert run_case(case).suspicion is None


def test_a_used_parameter_without_a_gradient_is_told_with_the_line_that_cut_it_off(
    run_case: Any, make_case: Any
) -> None:
    model = two_layers()

    def cut(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        hidden = model[0](batch["x"]).detach()  # type: ignore[index]
        return F.mse_loss(model[2](torch.tanh(hidden)), batch["y"])  # type: ignore[index]

    sighting = run_case(make_case(model, cut, regression(6), torch.optim.AdamW(model.parameters())))
    assert sighting.suspicion.kind == "zero_gradient"
    assert set(sighting.suspicion.names) == {"0.weight", "0.bias"}
    assert sighting.diagnosis.origin.code_line.startswith('hidden = model[0](batch["x"]).detach()')
    assert "no_detach" in [trial.remedy.slug for trial in sighting.diagnosis.remedies]


def test_a_frozen_group_with_rate_zero_is_not_called_unmoved(run_case: Any, make_case: Any) -> None:
    model = two_layers()
    groups = [{"params": model[0].parameters(), "lr": 0.0}, {"params": model[2].parameters(), "lr": 1e-2}]
    assert run_case(make_case(model, loss_fn, regression(6), torch.optim.AdamW(groups))).suspicion is None


def test_clipping_before_unscaling_is_seen_by_the_size_of_what_enters_the_optimizer(
    run_case: Any, make_case: Any
) -> None:
    model = two_layers()
    case = make_case(
        model,
        loss_fn,
        regression(6),
        torch.optim.SGD(model.parameters(), lr=1e-2),
        scaler=torch.amp.GradScaler("cpu", init_scale=4096.0),
        clip_norm=0.5,
        clip_before_unscale=True,
    )
    sighting = run_case(case)
    assert sighting.suspicion.kind == "mis_sized"
    assert sighting.diagnosis.cause.slug == "scaler_misuse"
    assert [trial.remedy.slug for trial in sighting.diagnosis.remedies] == ["unscale_first"]


def test_one_gradient_that_grew_after_backward_is_a_fault_and_all_of_them_alike_are_not() -> None:
    gradients = {name: Gradient(name, True, 1.0, 0.5) for name in "abcd"}
    one = ReplayObservation(gradients=gradients, entering={"a": 1e30, "b": 1.0, "c": 1.0, "d": 1.0})
    alike = ReplayObservation(gradients=gradients, entering=dict.fromkeys("abcd", 65536.0))
    assert grown_gradients(one) == ("a",)
    assert grown_gradients(alike) == ()


def test_gains_scattered_over_a_model_that_stand_still_have_no_common_module(run_case: Any, make_case: Any) -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 4), nn.LayerNorm(4)))
    model = model.to(torch.bfloat16)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in ("0.1.weight", "0.3.weight"))
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-6)
    batches = [torch.randn(4, 4, dtype=torch.bfloat16) for _ in range(5)]
    found = run_case(make_case(model, lambda m, b: m(b).float().square().mean(), batches, optimizer))
    assert found.diagnosis.cause.slug == "lost_update"
    assert found.diagnosis.origin.module is None


def test_a_summed_loss_that_rises_with_the_length_of_its_batches_is_no_divergence(
    run_case: Any, make_case: Any
) -> None:
    def run(lengths: list[int], rate: float) -> Any:
        torch.manual_seed(0)
        model = nn.Linear(3, 1)
        batches = [torch.randn(n, 3) for n in lengths]
        optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        return run_case(make_case(model, lambda m, b: (m(b) - 1).square().sum(), batches, optimizer)).suspicion

    assert run([4] * 6 + [40] * 6, rate=1e-5) is None
    assert run([4] * 12, rate=0.4).kind == "spike"


def test_a_bias_that_a_normalisation_takes_away_is_not_called_a_lost_update(run_case: Any, make_case: Any) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
    batches = [torch.randn(16, 4) for _ in range(6)]
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    case = make_case(model, lambda m, b: (m(b) - b[:, :1]).square().mean(), batches, optimizer)
    assert run_case(case).suspicion is None


def test_a_loss_that_rises_with_its_targets_while_old_batches_do_as_well_as_ever_is_no_divergence(
    run_case: Any, make_case: Any
) -> None:
    def run(rate: float, growth: float) -> Any:
        torch.manual_seed(0)
        model = nn.Linear(3, 1)
        batches = [(torch.randn(8, 3), torch.full((8, 1), growth**step)) for step in range(12)]
        optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        return run_case(make_case(model, lambda m, b: (m(b[0]) - b[1]).square().mean(), batches, optimizer)).suspicion

    assert run(rate=1e-5, growth=1.7) is None
    assert run(rate=1.5, growth=1.0).kind == "spike"


class Hiding(nn.Module):
    """Puts a loss without gradient in the place of a NaN, as is often done to please DDP."""

    def __init__(self, satisfied: bool = False) -> None:
        super().__init__()
        self.body, self.satisfied = nn.Linear(3, 1), satisfied

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        loss = self.body(x).square().mean()
        if bool(torch.isnan(loss)) or (self.satisfied and bool((x == 0).all())):
            loss = 0.0 * sum(p.sum() for p in self.parameters())
        return loss


@pytest.mark.parametrize(("value", "satisfied"), [(float("nan"), False), (0.0, True)])
def test_a_nan_answered_with_a_loss_of_zero_is_found_and_a_loss_that_is_zero_by_itself_is_not(
    value: float, satisfied: bool, run_case: Any, make_case: Any
) -> None:
    model = Hiding(satisfied)
    batches = [torch.randn(4, 3) for _ in range(6)]
    batches[3] = torch.full((4, 3), value)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    sighting = run_case(make_case(model, lambda m, b: m(b), batches, optimizer))
    if satisfied:
        assert sighting.suspicion is None
        return
    assert sighting.suspicion.step == 3
    assert sighting.diagnosis.cause.slug == "stale_momentum"
    assert [trial.remedy.slug for trial in sighting.diagnosis.remedies] == ["true_skip"]


class Averaged(nn.Module):
    """A student, and a teacher that is meant to follow it slowly."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.student = nn.Linear(3, 2)
        self.teacher = nn.Linear(3, 2).to(dtype).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.student(x) - self.teacher(x.to(self.teacher.weight.dtype)).float()).square().mean()

    @torch.no_grad()
    def follow(self) -> None:
        for old, new in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
            old.mul_(0.9998).add_(new.to(old.dtype), alpha=0.0002)


@pytest.mark.parametrize(("dtype", "writes"), [(torch.bfloat16, True), (torch.float32, True), (torch.bfloat16, False)])
def test_an_average_kept_in_half_precision_that_never_follows_is_told_and_a_frozen_weight_is_not(
    dtype: torch.dtype, writes: bool, run_case: Any, make_case: Any
) -> None:
    torch.manual_seed(0)
    model = Averaged(dtype)
    hook = (lambda case, index: case.model.follow()) if writes else None
    optimizer = torch.optim.Adam(model.student.parameters(), lr=1e-3)
    batches = [torch.randn(4, 3) for _ in range(7)]
    sighting = run_case(make_case(model, lambda m, b: m(b), batches, optimizer, before_step=hook))
    if dtype is torch.float32 or not writes:
        assert sighting.suspicion is None
        return
    assert sighting.diagnosis.cause.slug == "lost_update"
    assert sighting.diagnosis.origin.module == "teacher"
    # Only what makes the average move is called a cure.
    assert {trial.remedy.slug for trial in sighting.diagnosis.remedies} <= {"fp32", "fp32_state"}
    assert "fp32" in [trial.remedy.slug for trial in sighting.diagnosis.remedies]


class ListedLayers(nn.Module):
    """Hidden layers in a container of one's own choice."""

    def __init__(self, container: Any, *, learns: bool = True) -> None:
        super().__init__()
        self.inp, self.out, self.learns = nn.Linear(4, 8), nn.Linear(8, 1), learns
        self.hidden = container([nn.Linear(8, 8) for _ in range(2)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.inp(x))
        for layer in self.hidden.values() if isinstance(self.hidden, dict) else self.hidden:
            h = torch.relu(layer(h) if self.learns else layer(h).detach()) + h
        out: torch.Tensor = self.out(h)
        return out


def test_layers_in_a_plain_list_that_no_optimizer_knows_are_told_and_registered_ones_are_not(
    run_case: Any, make_case: Any
) -> None:
    for container, expected in (
        (list, True),
        (lambda layers: {str(i): layer for i, layer in enumerate(layers)}, True),
        (nn.ModuleList, False),
    ):
        model = ListedLayers(container)
        found = run_case(make_case(model, loss_fn, regression(8), torch.optim.AdamW(model.parameters()))).suspicion
        assert (found is not None and found.kind == "outside_optimizer") is expected
        if found is not None:
            assert (found.step, len(found.names)) == (0, 4)
    kept_for_looking = ListedLayers(list, learns=False)
    optimizer = torch.optim.AdamW(kept_for_looking.parameters())
    assert run_case(make_case(kept_for_looking, loss_fn, regression(8), optimizer)).suspicion is None
    held = ListedLayers(list)
    everything = [*held.parameters(), *(p for layer in held.hidden for p in layer.parameters())]
    assert run_case(make_case(held, loss_fn, regression(8), torch.optim.AdamW(everything))).suspicion is None


def test_a_weight_thrown_far_out_between_steps_is_told_even_where_the_loss_bears_it(
    run_case: Any, make_case: Any
) -> None:
    def flip(case: Any, index: int) -> None:
        if index == 4:
            case.model[0].weight.data[1, 2] = 3e30

    torch.manual_seed(0)
    model = two_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    seen = run_case(make_case(model, loss_fn, regression(8), optimizer, before_step=flip))
    assert seen.suspicion.step == 4
    assert (seen.diagnosis.phase, seen.diagnosis.origin.module) == ("state", "0")
    assert seen.diagnosis.cause.slug == "transient_fault"
    assert [trial.remedy.slug for trial in seen.diagnosis.remedies] == ["restore_weight"]


def test_a_finite_outlier_is_told_as_data_with_its_row_and_dropping_it_is_tried(run_case: Any, make_case: Any) -> None:
    torch.manual_seed(0)
    model, batches = two_layers(), regression(12)
    batches[6]["y"][3] = 3e5
    found = run_case(make_case(model, loss_fn, batches, torch.optim.SGD(model.parameters(), lr=1e-2))).diagnosis
    assert (found.phase, found.cause.slug, found.rows) == ("data", "bad_input", (3,))
    assert "drop_rows" in [trial.remedy.slug for trial in found.remedies]
    assert "lr_down" not in [trial.remedy.slug for trial in found.trials]


def test_a_tensor_kept_as_a_plain_attribute_is_named_and_not_taken_for_data(run_case: Any, make_case: Any) -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.factor = nn.Linear(4, 1), torch.full((4,), float("nan"))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.body(x * self.factor)

    model = Scaled()
    found = run_case(make_case(model, loss_fn, regression(4), torch.optim.SGD(model.parameters(), lr=1e-2))).diagnosis
    assert (found.phase, found.origin.tensor, found.cause.slug) == ("state", "factor", "uninitialised")
    assert [trial.remedy.slug for trial in found.remedies] == ["init"]


class WithAuxiliary(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head, self.auxiliary = nn.Linear(4, 6), nn.Linear(6, 1), nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = torch.tanh(self.body(x))
        return self.head(hidden), self.auxiliary(hidden)


@pytest.mark.parametrize("weight", [0.0, torch.tensor(0.0)])
def test_a_term_whose_weight_is_zero_is_switched_off_and_not_cut_off(
    weight: Any, run_case: Any, make_case: Any
) -> None:
    def switched(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        value, extra = model(batch["x"])
        return F.mse_loss(value, batch["y"]) + weight * extra.square().mean()

    def detached(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        value, extra = model(batch["x"])
        return F.mse_loss(value, batch["y"]) + (0.1 + weight) * extra.detach().square().mean()

    torch.manual_seed(0)
    model = WithAuxiliary()
    optimizer = torch.optim.Adam(model.parameters())
    assert run_case(make_case(model, switched, regression(6), optimizer)).suspicion is None
    found = run_case(make_case(model, detached, regression(6), optimizer)).diagnosis
    assert (found.cause.slug, found.origin.module) == ("no_trainable_grad", "auxiliary")


def test_a_layer_drawn_anew_on_purpose_is_no_divergence(run_case: Any, make_case: Any) -> None:
    def reset(case: Any, index: int) -> None:
        if index == 6:
            nn.init.normal_(case.model[2].weight, std=3.0)

    torch.manual_seed(0)
    model = two_layers()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    assert run_case(make_case(model, loss_fn, regression(14), optimizer, before_step=reset)).suspicion is None


def test_a_parameter_that_another_optimizer_trains_between_the_steps_is_not_missed(
    run_case: Any, make_case: Any
) -> None:
    torch.manual_seed(0)
    model = two_layers()
    other = torch.optim.SGD(model[2].parameters(), lr=1e-2)

    def train_the_head(case: Any, index: int) -> None:
        if index:
            other.step()
            other.zero_grad()

    mine = torch.optim.Adam(model[0].parameters())
    assert run_case(make_case(model, loss_fn, regression(8), mine, before_step=train_the_head)).suspicion is None
    model = two_layers()
    alone = torch.optim.Adam(model[0].parameters())
    found = run_case(make_case(model, loss_fn, regression(8), alone)).suspicion
    assert (found.kind, found.names) == ("outside_optimizer", ("2.bias", "2.weight"))


class Booked(nn.Module):
    """Keeps figures in buffers; `reads` lets one of them into the loss."""

    def __init__(self, *, reads: bool, lasting: bool) -> None:
        super().__init__()
        self.body, self.reads, self.lasting = nn.Linear(4, 1), reads, lasting
        self.register_buffer("score", torch.full((2,), float("nan")))
        self.register_buffer("ratio", torch.tensor(0.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            now = x.std() / x.std()  # of a constant batch nought by nought
            self.ratio.copy_(0.9 * self.ratio + 0.1 * now if self.lasting else now)
        out = self.body(x)
        return out + self.score[0] if self.reads else out


def test_figures_for_a_log_may_be_nan_as_long_as_nothing_reads_them(run_case: Any, make_case: Any) -> None:
    def seen(**kind: bool) -> Any:
        torch.manual_seed(0)
        model, batches = Booked(**kind), regression(8)
        batches[4]["x"].fill_(1.0)
        return run_case(make_case(model, loss_fn, batches, torch.optim.SGD(model.parameters(), lr=1e-2)))

    assert seen(reads=False, lasting=False).suspicion is None
    read = seen(reads=True, lasting=False)
    assert (read.suspicion.step, read.diagnosis.origin.tensor) == (0, "score")
    stays = seen(reads=False, lasting=True)
    assert (stays.suspicion.step, stays.suspicion.names) == (4, ("ratio",))
    assert (stays.diagnosis.phase, stays.diagnosis.origin.op) == ("forward", "div")


@pytest.mark.parametrize("turn", ["for good", "every sixth step"])
def test_a_gradient_that_stops_for_good_is_told_and_one_that_takes_turns_is_not(
    turn: str, run_case: Any, make_case: Any
) -> None:
    class Turns(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.head, self.now = nn.Linear(4, 6), nn.Linear(6, 1), 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = torch.tanh(self.encoder(x))
            cut = self.now >= 3 if turn == "for good" else self.now % 6 != 0
            return self.head(hidden.detach() if cut else hidden)

    def count(case: Any, index: int) -> None:
        case.model.now = index

    torch.manual_seed(0)
    model = Turns()
    optimizer = torch.optim.Adam(model.parameters())
    seen = run_case(make_case(model, loss_fn, regression(14), optimizer, before_step=count))
    if turn == "for good":
        assert (seen.suspicion.step, seen.diagnosis.origin.module) == (3, "encoder")
        assert [trial.remedy.slug for trial in seen.diagnosis.remedies] == ["no_detach"]
    else:
        assert seen.suspicion is None


def test_layers_the_model_does_not_know_are_adopted_in_a_trial_and_given_back(run_case: Any, make_case: Any) -> None:
    torch.manual_seed(0)
    model = ListedLayers(list)
    optimizer = torch.optim.AdamW(model.parameters())
    before = [p.detach().clone() for layer in model.hidden for p in layer.parameters()]
    found = run_case(make_case(model, loss_fn, regression(8), optimizer)).diagnosis
    (cure,) = found.remedies
    assert (cure.remedy.slug, "ModuleList" in (cure.remedy.code_change or "")) == ("rebuild_optimizer", True)
    after = [p for layer in model.hidden for p in layer.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))
    assert len(optimizer.param_groups) == 1


def robust(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return F.huber_loss(model(batch["x"]), batch["y"])


@pytest.mark.parametrize(("loss", "told"), [(loss_fn, True), (robust, False)])
def test_one_batch_in_other_units_is_told_though_the_loss_falls_back_unless_the_loss_is_made_for_it(
    run_case: Any, make_case: Any, loss: Any, told: bool
) -> None:
    model, batches = two_layers(), regression(12)
    batches[7]["y"][2] *= 1e5
    suspicion = run_case(make_case(model, loss, batches, torch.optim.AdamW(model.parameters(), lr=1e-3))).suspicion
    assert (suspicion is not None) == told
    if told:
        assert suspicion.step == 7

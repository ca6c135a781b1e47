"""Small loops with an error that no value shows, and healthy ones that look like them, at `sg.attach(optimizer)`."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from types import SimpleNamespace

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import lr_scheduler as schedules

import steadygrad as sg
from steadygrad.detect.loop import recorded_optimizer
from steadygrad.detect.loop.measured.worker_seeds import same_draws, seeded_alike

Loop = Callable[[nn.Module, torch.optim.Optimizer, Callable[[], tuple[Tensor, Tensor]]], None]


def net(drop: float = 0.0, norm: bool = False) -> nn.Sequential:
    middle: list[nn.Module] = [nn.BatchNorm1d(16)] if norm else []
    return nn.Sequential(nn.Linear(6, 16), *middle, nn.Tanh(), nn.Dropout(drop), nn.Linear(16, 3))


def named(loop: Loop, model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> list[str]:
    """The causes that are named for a loop; no fault of ours may occur."""
    random = torch.Generator().manual_seed(1)

    def batch() -> tuple[Tensor, Tensor]:
        inputs = torch.randn(8, 6, generator=random)
        return inputs, (inputs[:, 0] > 0).long() + (inputs[:, 1] > 0).long()

    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    with sg.attach(optimizer, model=model) as guard:
        loop(model, optimizer, batch)
    assert guard.summary()["guard_faults"] == {}
    return [incident.diagnosis.cause.slug for incident in guard.incidents if incident.diagnosis is not None]


def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def never_cleared(model, optimizer, batch):
    for _ in range(5):
        loss_of(model, batch()).backward()
        optimizer.step()


def cleared_by_hand(model, optimizer, batch):
    for _ in range(5):
        for parameter in model.parameters():
            parameter.grad = None
        loss_of(model, batch()).backward()
        optimizer.step()


def cleared_in_place(model, optimizer, batch):
    for _ in range(5):
        optimizer.zero_grad(set_to_none=False)
        loss_of(model, batch()).backward()
        optimizer.step()


def cleared_through_data(model, optimizer, batch):
    for _ in range(12):
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.data.zero_()
        loss_of(model, batch()).backward()
        optimizer.step()


def decayed_by_hand(model, optimizer, batch):
    for _ in range(5):
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(0.5)
        loss_of(model, batch()).backward()
        optimizer.step()


def cleared_before_the_update(model, optimizer, batch):
    for _ in range(5):
        loss_of(model, batch()).backward()
        optimizer.zero_grad()
        optimizer.step()


def zeroed_before_the_update(model, optimizer, batch):
    for _ in range(5):
        loss_of(model, batch()).backward()
        optimizer.zero_grad(set_to_none=False)
        optimizer.step()


def without_labels_now_and_then(model, optimizer, batch):
    for number in range(8):
        optimizer.zero_grad()
        (loss_of(model, batch()) * (0.0 if number in (3, 4, 5) else 1.0)).backward()
        optimizer.step()


def cleared_at_every_micro_batch(model, optimizer, batch):
    for number in range(12):
        optimizer.zero_grad()
        loss_of(model, batch()).backward()
        if number % 3 == 2:
            optimizer.step()


def accumulated(model, optimizer, batch):
    for number in range(12):
        (loss_of(model, batch()) / 3).backward()
        if number % 3 == 2:
            optimizer.step()
            optimizer.zero_grad()


def attacked(model, optimizer, batch):
    for _ in range(6):
        inputs, labels = batch()
        near = inputs.clone().requires_grad_()
        loss_of(model, (near, labels)).backward()
        optimizer.zero_grad()
        loss_of(model, ((inputs + 0.1 * near.grad.sign()).detach(), labels)).backward()
        optimizer.step()
        optimizer.zero_grad()


def gradients_combined(model, optimizer, batch):
    for _ in range(6):
        kept = []
        for _ in range(2):
            optimizer.zero_grad()
            loss_of(model, batch()).backward()
            kept.append([parameter.grad.clone() for parameter in model.parameters()])
        for parameter, one, other in zip(model.parameters(), *kept, strict=True):
            parameter.grad = (one + other) / 2
        optimizer.step()


def tail_thrown_away(model, optimizer, batch):
    for _ in range(4):
        optimizer.zero_grad()
        for number in range(7):
            (loss_of(model, batch()) / 3).backward()
            if number % 3 == 2:
                optimizer.step()
                optimizer.zero_grad()


def in_evaluation_mode(model, optimizer, batch):
    for number in range(8):
        if number == 3:
            model.eval()
        optimizer.zero_grad()
        loss_of(model, batch()).backward()
        optimizer.step()


def validated_as_it_should_be(model, optimizer, batch):
    for number in range(9):
        if number % 3 == 2:
            model.eval()
            with torch.no_grad():
                model(batch()[0])
            model.train()
        optimizer.zero_grad()
        loss_of(model, batch()).backward()
        optimizer.step()


def validated_in_training_mode(model, optimizer, batch):
    for number in range(9):
        if number % 3 == 2:
            with torch.no_grad():
                model(batch()[0][:5])
        optimizer.zero_grad()
        loss_of(model, batch()).backward()
        optimizer.step()


def uncertainty_by_dropout(model, optimizer, batch):
    for number in range(12):
        if number % 4 == 3:
            inputs = batch()[0][:5]
            with torch.no_grad():
                for _ in range(6):
                    model(inputs)
        optimizer.zero_grad()
        loss_of(model, batch()).backward()
        optimizer.step()


def clipped_to_nothing(model, optimizer, batch):
    for _ in range(10):
        optimizer.zero_grad()
        (300 * loss_of(model, batch())).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        optimizer.step()


def unscaled_by_hand(model, optimizer, batch):
    for _ in range(10):
        optimizer.zero_grad()
        (1024 * loss_of(model, batch())).backward()
        for parameter in model.parameters():
            parameter.grad.div_(1024)
        optimizer.step()


def rate_of_zero(model, optimizer, batch):
    schedule = torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=4)
    for _ in range(9):
        optimizer.zero_grad()
        loss_of(model, batch()).backward()
        optimizer.step()
        schedule.step()


def scheduled(make):
    """A loop with a schedule that is stepped after each of forty updates."""

    def loop(model, optimizer, batch):
        schedule = make(optimizer)
        for _ in range(40):
            optimizer.zero_grad()
            loss_of(model, batch()).backward()
            optimizer.step()
            schedule.step()

    return loop


def pause(optimizer):
    """A rate of zero for a while, and then the rest."""
    parts = [schedules.ConstantLR(optimizer, factor, 100) for factor in (1.0, 0.0, 1.0)]
    return schedules.SequentialLR(optimizer, parts, [10, 30])


def restarts(optimizer):
    """A few updates at the begin of a long period, and those around its end."""
    schedule = schedules.CosineAnnealingWarmRestarts(optimizer, 5000)
    places = iter([*range(1, 10), *range(4985, 5020)])
    return SimpleNamespace(step=lambda: schedule.step(next(places)))


def pause_to_the_end(optimizer):
    parts = [schedules.ConstantLR(optimizer, 1.0, 100), schedules.PolynomialLR(optimizer, 10)]
    return schedules.SequentialLR(optimizer, parts, [10])


def ends_early_beside_others(optimizer):
    """Another optimizer has a schedule that comes back."""
    other = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    ends = schedules.PolynomialLR(optimizer, 10)
    ends.beside = schedules.CyclicLR(other, 0.0, 0.1, 5)
    return ends


@pytest.mark.parametrize(
    "make",
    [
        pause,
        lambda optimizer: schedules.ChainedScheduler([pause(optimizer)]),
        restarts,
    ],
    ids=["a part to come", "chained", "restarts"],
)
def test_a_rate_of_zero_that_the_schedule_itself_ends_is_not_named(make) -> None:
    torch.manual_seed(0)
    assert named(scheduled(make), net(drop=0.3)) == []


@pytest.mark.parametrize("make", [pause_to_the_end, ends_early_beside_others])
def test_a_rate_of_zero_to_the_end_is_named(make) -> None:
    torch.manual_seed(0)
    assert named(scheduled(make), net(drop=0.3)) == ["lr_zero"]


def one_cycle(model, optimizer, batch):
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=20)
    for _ in range(20):
        optimizer.zero_grad()
        loss_of(model, batch()).backward()
        optimizer.step()
        schedule.step()


@pytest.mark.parametrize(
    ("loop", "cause"),
    [
        (never_cleared, "missing_zero_grad"),
        (cleared_before_the_update, "zero_grad_before_step"),
        (zeroed_before_the_update, "zero_grad_before_step"),
        (cleared_at_every_micro_batch, "accumulation_cleared"),
        (tail_thrown_away, "accumulation_tail_dropped"),
        (in_evaluation_mode, "eval_mode_in_training"),
        (validated_in_training_mode, "train_mode_in_eval"),
        (clipped_to_nothing, "clip_throttles"),
        (rate_of_zero, "lr_zero"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_an_error_of_the_loop_is_named(loop: Loop, cause: str) -> None:
    torch.manual_seed(0)
    assert named(loop, net(drop=0.3)) == [cause]


@pytest.mark.parametrize(
    "loop",
    [
        cleared_by_hand,
        cleared_in_place,
        decayed_by_hand,
        without_labels_now_and_then,
        accumulated,
        attacked,
        gradients_combined,
        validated_as_it_should_be,
        uncertainty_by_dropout,
        unscaled_by_hand,
        one_cycle,
    ],
    ids=lambda value: value.__name__,
)
def test_a_healthy_loop_that_looks_like_an_error_is_left_alone(loop: Loop) -> None:
    torch.manual_seed(0)
    assert named(loop, net(drop=0.3)) == []


def test_statistics_that_absorb_validation_data_are_named() -> None:
    torch.manual_seed(0)
    assert named(validated_in_training_mode, net(norm=True)) == ["train_mode_in_eval"]


def test_a_pass_before_every_update_is_left_alone_though_the_first_one_was_not_seen() -> None:
    """The loop of a generator: what it makes for its discriminator is made without gradients. The guard comes late."""
    torch.manual_seed(0)
    model = net(norm=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    guard = None
    for _ in range(6):
        with torch.no_grad():
            model(torch.randn(8, 6))
        optimizer.zero_grad()
        model(torch.randn(8, 6)).square().mean().backward()
        guard = guard or sg.attach(optimizer, model=model)
        optimizer.step()
    guard.close()
    assert guard.incidents == []


def test_adam_is_not_throttled_by_a_small_clip() -> None:
    torch.manual_seed(0)
    model = net()
    assert named(clipped_to_nothing, model, torch.optim.Adam(model.parameters(), lr=1e-2)) == []


def rate_lost(model, optimizer, batch):
    optimizer.param_groups[1]["lr"] = 0.0
    cleared_by_hand(model, optimizer, batch)


@pytest.mark.parametrize(("initial", "causes"), [(None, ["wrong_param_group_lr"]), (0.1, [])])
def test_a_group_that_loses_its_rate_is_named_unless_a_schedule_raises_it(
    initial: float | None, causes: list[str]
) -> None:
    torch.manual_seed(0)
    model = net()
    optimizer = torch.optim.SGD([{"params": model[0].parameters()}, {"params": model[-1].parameters()}], lr=0.1)
    if initial is not None:
        optimizer.param_groups[1]["initial_lr"] = initial
    assert named(rate_lost, model, optimizer) == causes


@pytest.mark.parametrize(("place", "causes"), [(0, []), (-1, ["wrong_param_group_lr"])])
def test_a_group_made_with_a_rate_of_zero_is_left_alone_unless_it_holds_the_last_layer(
    place: int, causes: list[str]
) -> None:
    torch.manual_seed(0)
    model = net()
    groups = [{"params": model[0].parameters()}, {"params": model[-1].parameters()}]
    groups[place]["lr"] = 0.0  # type: ignore[assignment]
    assert named(cleared_by_hand, model, torch.optim.SGD(groups, lr=0.1)) == causes


def weighed(*, sums: bool) -> Loop:
    def loop(model, optimizer, batch):
        for _ in range(5):
            windows = [torch.randn(2, 24, 6), torch.randn(2, 2, 6)]
            tokens = sum(each.shape[0] * each.shape[1] for each in windows)
            for inputs in windows:
                labels = (inputs[..., 0] > 0).long().flatten()
                total = F.cross_entropy(model(inputs).flatten(0, 1), labels, reduction="sum")
                (total / tokens if sums else total / len(labels) / len(windows)).backward()
            optimizer.step()
            optimizer.zero_grad()

    return loop


@pytest.mark.parametrize(("sums", "causes"), [(True, []), (False, ["accumulation_weighting"])])
def test_a_mean_of_means_over_unequal_micro_batches_is_named(sums: bool, causes: list[str]) -> None:
    torch.manual_seed(0)
    assert named(weighed(sums=sums), net()) == causes


class Adapted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(6, 16).requires_grad_(False)
        self.down, self.up = nn.Linear(6, 2, bias=False), nn.Linear(2, 16, bias=False)
        self.head, self.on = nn.Linear(16, 3), True

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.base(inputs)
        return self.head(hidden + self.up(self.down(inputs)) if self.on else hidden)


@pytest.mark.parametrize(("stays_on", "causes"), [(True, []), (False, ["lora_inactive"])])
def test_adapters_that_are_switched_off_are_named(stays_on: bool, causes: list[str]) -> None:
    torch.manual_seed(0)
    model = Adapted()

    def loop(model, optimizer, batch):
        for number in range(8):
            model.on = stays_on or number < 4
            optimizer.zero_grad()
            loss_of(model, batch()).backward()
            optimizer.step()

    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert named(loop, model, torch.optim.Adam(parameters, lr=1e-2)) == causes


def test_adapters_of_layers_that_did_not_run_are_left_alone() -> None:
    torch.manual_seed(0)

    class TwoWays(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.adapted, self.head = Adapted(), nn.Linear(6, 3)

        def forward(self, inputs: Tensor) -> Tensor:
            return self.head(inputs)

    model = TwoWays()

    def loop(model, optimizer, batch):
        for _ in range(6):
            optimizer.zero_grad()
            loss_of(model, batch()).backward()
            optimizer.step()

    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert "lora_inactive" not in named(loop, model, torch.optim.Adam(parameters, lr=1e-2))


def test_gradients_cleared_through_data_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[float] = []
    share = recorded_optimizer._share
    monkeypatch.setattr(recorded_optimizer, "_share", lambda *given: read.append(share(*given)) or read[-1])
    assert named(cleared_through_data, net()) == []
    assert read == [0.0]


@pytest.mark.parametrize(("copied", "causes"), [(True, []), (False, ["reference_aliased"])])
def test_a_model_that_is_its_own_reference_is_named(copied: bool, causes: list[str]) -> None:
    torch.manual_seed(0)
    model = net()
    reference = copy.deepcopy(model).requires_grad_(False) if copied else model

    def loop(model, optimizer, batch):
        for _ in range(6):
            inputs, labels = batch()
            with torch.no_grad():
                old = F.log_softmax(reference(inputs), -1).gather(1, labels[:, None])
            new = F.log_softmax(model(inputs), -1).gather(1, labels[:, None])
            optimizer.zero_grad()
            (-torch.log(torch.sigmoid(new - old)).mean()).backward()
            optimizer.step()

    assert named(loop, model) == causes


class Noisy(torch.utils.data.Dataset):
    def __init__(self, own: bool) -> None:
        self.random = numpy.random.default_rng(0) if own else None

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Tensor:
        draw = self.random.normal(size=3) if self.random is not None else numpy.random.normal(size=3)
        return torch.as_tensor(draw) + index


class Split(torch.utils.data.Dataset):
    """Uses its generator once, to choose its samples."""

    def __init__(self) -> None:
        self.random = numpy.random.default_rng(0)
        self.chosen = self.random.permutation(8)

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Tensor:
        return torch.as_tensor(self.chosen[index])


def test_workers_with_copies_of_one_generator_are_named() -> None:
    dataset = Noisy(own=True)
    before = dataset.random.bit_generator.state
    assert "dataset.random" in same_draws(dataset, 4, has_worker_init=False)
    assert dataset.random.bit_generator.state == before


@pytest.mark.parametrize(
    ("dataset", "workers", "init"),
    [(Noisy(own=False), 4, False), (Noisy(own=True), 1, False), (Noisy(own=True), 4, True), (Split(), 4, False)],
)
def test_workers_that_draw_for_themselves_are_left_alone(dataset, workers: int, init: bool) -> None:
    assert same_draws(dataset, workers, has_worker_init=init) == ""


FIXED = 3


class Drawn(torch.utils.data.Dataset):
    """Draws with torch's or numpy's own generator."""

    def __init__(self, numpys: bool) -> None:
        self.numpys = numpys

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Tensor:
        return torch.as_tensor(numpy.random.normal(size=3)) if self.numpys else torch.randn(3)


def _seeds_both(worker: int) -> None:
    torch.manual_seed(FIXED)
    numpy.random.seed(FIXED)


@pytest.mark.parametrize(
    ("numpys", "init"),
    [
        (True, lambda worker: numpy.random.seed(0)),
        (False, lambda worker: torch.manual_seed(42)),
        (False, _seeds_both),
        (True, _seeds_both),
    ],
)
def test_workers_that_are_given_one_seed_are_named(numpys: bool, init: Callable[[int], object]) -> None:
    before = torch.get_rng_state(), numpy.random.get_state()[1].tolist()
    assert "the same seed" in seeded_alike(Drawn(numpys), 4, init)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert numpy.random.get_state()[1].tolist() == before[1]


@pytest.mark.parametrize(
    ("dataset", "init"),
    [
        (Drawn(True), lambda worker: numpy.random.seed(worker)),
        (Drawn(True), lambda worker: numpy.random.seed(torch.initial_seed() % 2**32)),
        (Drawn(True), lambda worker: torch.manual_seed(0)),
        (Drawn(False), lambda worker: numpy.random.seed(0)),
        (Drawn(False), lambda worker: None),
        (Drawn(False), None),
        (Split(), lambda worker: torch.manual_seed(0)),
    ],
)
def test_workers_that_get_other_seeds_or_draw_with_something_else_are_left_alone(dataset, init) -> None:
    assert seeded_alike(dataset, 4, init) == ""
    assert seeded_alike(Drawn(False), 1, lambda worker: torch.manual_seed(0)) == ""


def test_parameters_of_another_optimizer_are_not_called_untrained() -> None:
    torch.manual_seed(0)
    model = net()
    first, last = torch.optim.Adam(model[0].parameters()), torch.optim.Adam(model[-1].parameters())
    with sg.attach(first, model=model) as guard:
        for _ in range(6):
            first.zero_grad()
            last.zero_grad()
            model(torch.randn(8, 6)).pow(2).mean().backward()
            first.step()
            last.step()
    assert [found.slug for found in guard.vitals if found.code == "SY405"] == []


def test_an_optimizer_for_each_task_is_a_warning_and_no_incident() -> None:
    torch.manual_seed(0)
    model = net()
    warned: list[str] = []
    for _ in range(4):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        with sg.attach(optimizer, model=model) as guard:
            for _ in range(10):
                optimizer.zero_grad()
                model(torch.randn(8, 6)).pow(2).mean().backward()
                optimizer.step()
        assert guard.incidents == []
        warned += [found.slug for found in guard.vitals]
    assert "momentum_not_restored" in warned


def test_complex_weights_are_recorded_without_a_warning() -> None:
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(6, 3, dtype=torch.complex64))
    optimizer = torch.optim.SGD([weight], lr=0.05)
    with warnings.catch_warnings(), sg.attach(optimizer) as guard:
        warnings.simplefilter("error")
        for _ in range(6):
            (torch.randn(4, 6, dtype=torch.complex64) @ weight).abs().pow(2).mean().backward()
            weight.grad.mul_(0.5)
            optimizer.step()
    assert guard.summary()["guard_faults"] == {}


def test_updates_inside_of_backward_are_no_fault() -> None:
    torch.manual_seed(0)
    model = net()
    optimizers = {parameter: torch.optim.SGD([parameter], lr=0.01) for parameter in model.parameters()}

    def step_at_once(parameter: Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step_at_once)
    guards = [sg.attach(optimizer, model=model) for optimizer in optimizers.values()]
    for _ in range(8):
        model(torch.randn(8, 6)).pow(2).mean().backward()
    for guard in guards:
        guard.close()
        assert guard.summary()["guard_faults"] == {}


def test_calls_under_vmap_are_no_fault() -> None:
    torch.manual_seed(0)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with sg.attach(optimizer, model=model) as guard:
        for _ in range(4):
            weights = {name: parameter.detach() for name, parameter in model.named_parameters()}

            def loss(given, row, weights=weights):
                return torch.func.functional_call(model, given, (row[None],)).pow(2).mean()

            rows = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(weights, torch.randn(5, 6))
            for name, parameter in model.named_parameters():
                parameter.grad = rows[name].mean(0)
            optimizer.step()
    assert guard.summary()["guard_faults"] == {}


def test_gradients_that_the_program_puts_in_place_itself_are_not_called_old() -> None:
    torch.manual_seed(0)
    model = net()

    def loop(model, optimizer, batch):
        parameters = list(model.parameters())
        for _ in range(8):
            given = batch()
            found = torch.autograd.grad(loss_of(model, given), parameters)
            for parameter, gradient in zip(parameters, found, strict=True):
                parameter.grad = gradient.clone()
            optimizer.step()

    assert named(loop, model) == []


class TakesALoss(torch.optim.SGD):
    """An optimizer whose step takes a number, and no closure."""

    def step(self, loss, *, scale=1.0):
        super().step()
        return float(loss) * scale


def test_an_optimizer_that_takes_something_else_than_a_closure_gets_it() -> None:
    torch.manual_seed(0)
    model = net()
    optimizer = TakesALoss(model.parameters(), lr=0.01)
    with sg.attach(optimizer, model=model) as guard:
        for _ in range(4):
            optimizer.zero_grad()
            loss = model(torch.randn(8, 6)).pow(2).mean()
            loss.backward()
            assert optimizer.step(loss.detach(), scale=2.0) == 2 * loss.item()
    assert guard.summary()["applied"] == 4
    assert guard.summary()["guard_faults"] == {}


def only_the_root_flag_restored(model, optimizer, batch):
    for step in range(6):
        if step == 3:
            model.eval()
            model.training = True
        optimizer.zero_grad()
        loss_of(model, batch()).backward()
        optimizer.step()


def trunk_frozen_half_way(model, optimizer, batch):
    for step in range(6):
        if step == 3:
            model[0].eval().requires_grad_(False)
        optimizer.zero_grad()
        loss_of(model, batch()).backward()
        optimizer.step()


def test_dropout_that_goes_off_in_the_middle_is_named() -> None:
    torch.manual_seed(0)
    assert named(only_the_root_flag_restored, net(drop=0.3)) == ["eval_mode_in_training"]


def test_dropout_that_goes_off_with_a_part_that_is_frozen_is_left_alone() -> None:
    torch.manual_seed(0)
    trunk = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.3), nn.Tanh())
    assert named(trunk_frozen_half_way, nn.Sequential(trunk, nn.Linear(16, 3))) == []


@pytest.mark.parametrize(("frozen", "found"), [(True, []), (False, ["eval_mode_in_training"])])
def test_untouched_statistics_in_evaluation_mode_are_named_only_where_they_are_trained(
    frozen: bool, found: list[str]
) -> None:
    torch.manual_seed(0)
    trunk = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Tanh()).requires_grad_(not frozen)

    def training(model, optimizer, batch):
        model[0].eval()
        for _ in range(4):
            optimizer.zero_grad()
            loss_of(model, batch()).backward()
            optimizer.step()

    assert named(training, nn.Sequential(trunk, nn.Linear(16, 3))) == found


def units_that_die(at: int, until: int) -> Loop:
    """An update throws the hidden layer out of the range of its inputs; a later one may bring it back."""

    def loop(model, optimizer, batch):
        for number in range(at + 12):
            if number == at:
                with torch.no_grad():
                    model[0].bias -= 100
            if number == until:
                with torch.no_grad():
                    model[0].bias += 100
            optimizer.zero_grad()
            loss_of(model, batch()).backward()
            optimizer.step()

    return loop


@pytest.mark.parametrize(("at", "until", "causes"), [(2, 99, ["dead_relu"]), (18, 99, ["dead_relu"]), (19, 21, [])])
def test_a_layer_that_dies_after_the_first_updates_is_named(at: int, until: int, causes: list[str]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    assert named(units_that_die(at, until), model) == causes

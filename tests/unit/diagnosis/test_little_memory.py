"""A model that barely fits: memory is asked for before it is taken, and the origin is named with what is left, or the
answer says what it would have needed. Training goes on with the same bits and nothing is kept alive."""

from __future__ import annotations

import gc
import importlib
import re
from typing import Any

import pytest
import torch
from fake_device import FakeDevice
from torch import Tensor, nn

from steadygrad import Guard
from steadygrad.diagnosis.isolation import device_memory
from steadygrad.diagnosis.isolation.device_memory import NotEnoughMemory, in_words, short_of_memory, taken_apart
from steadygrad.diagnosis.isolation.resource_limits import isolated
from steadygrad.diagnosis.replay import offloaded as offloading
from steadygrad.diagnosis.replay import replay_step
from steadygrad.diagnosis.replay.offloaded import offloaded
from steadygrad.records import Diagnosis, Incident

diagnosis_of_steps = importlib.import_module("steadygrad.diagnosis.diagnose")
BAD, STEPS = 3, 5


class Doubled(torch.autograd.Function):
    """Its backward divides by what forward was given."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return 2 * x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return grad * 2 * (x / x)


class Divided(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / x.pow(2).sum(-1, keepdim=True).sqrt()


class Rooted(nn.Module):
    """Finite for a row of zeros, and its gradient is not."""

    def forward(self, x: Tensor) -> Tensor:
        return x + x.pow(2).sum(-1, keepdim=True).sqrt()


class ByHand(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return Doubled.apply(x)  # type: ignore[no-any-return, no-untyped-call]


class Masked(nn.Module):
    """Of a row of zeros the infinities are left out; backward multiplies them by zero."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x != 0, x * (1 / x.abs()), 0.0)


class Net(nn.Module):
    def __init__(self, middle: nn.Module, width: int, depth: int) -> None:
        super().__init__()
        self.body = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(depth))
        self.middle, self.head = middle, nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.body:
            x = torch.tanh(layer(x))
        out: Tensor = self.head(self.middle(x))
        return out


def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
    return model(batch).pow(2).mean()  # type: ignore[no-any-return]


def batches(rows: int, width: int, bad: int | None = BAD) -> list[Tensor]:
    made = [torch.randn(rows, width, generator=torch.Generator().manual_seed(step)) for step in range(STEPS)]
    if bad is not None:
        made[bad][rows // 2] = 0.0
    return made


def trained(
    monkeypatch: pytest.MonkeyPatch,
    device: FakeDevice,
    middle: type[nn.Module] = Divided,
    *,
    rows: int = 1024,
    width: int = 64,
    depth: int = 4,
    diagnose: str = "auto",
    leave_out: int | None = None,
    bad: int | None = BAD,
    loss: Any = loss_fn,
) -> tuple[nn.Module, list[Incident], list[int]]:
    """The model, the incidents, and the bytes in use after each step."""
    used = []
    with device.in_use(monkeypatch):
        torch.manual_seed(0)
        model = Net(middle(), width, depth)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        data = batches(rows, width, bad)
        with Guard(model, optimizer, loss, diagnose=diagnose) as guard:
            for step, batch in enumerate(data):
                if step != leave_out:
                    guard.step(batch)
                gc.collect()
                used.append(device.used)
        incidents = guard.incidents
    return model, incidents, used


def same_bits(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def only(incidents: list[Incident]) -> Diagnosis:
    assert len(incidents) == 1
    assert incidents[0].diagnosis is not None
    return incidents[0].diagnosis


def where(diagnosis: Diagnosis) -> tuple[Any, ...]:
    origin, cause = diagnosis.origin, diagnosis.cause
    assert origin is not None
    return origin.phase, origin.op, origin.module, origin.source, cause.slug if cause else None


def lead_up(diagnosis: Diagnosis) -> list[tuple[str, float | None]]:
    """What was made before the bad value, which is found by who wrote what."""
    assert diagnosis.origin is not None
    return [(digest.name, digest.absmax) for digest in diagnosis.origin.lead_up]


def undiagnosed(
    monkeypatch: pytest.MonkeyPatch, middle: type[nn.Module], **sizes: Any
) -> tuple[int, nn.Module, list[int]]:
    """The most that the guarded training takes by itself, what it leads to, and the bytes in use after each step."""
    device = FakeDevice()
    model, _, used = trained(monkeypatch, device, middle, diagnose="off", **sizes)
    return device.peak, model, used


LONG = [pytest.param(middle, marks=pytest.mark.slow) for middle in (Rooted, ByHand)]


# -- healthy runs


def test_a_healthy_run_that_barely_fits_is_not_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    device = FakeDevice()
    expected = trained(monkeypatch, device, diagnose="off", bad=None)[0]
    monkeypatch.setattr(diagnosis_of_steps, "short_of_memory", pytest.fail)
    model, incidents, _ = trained(monkeypatch, FakeDevice(device.peak / 0.95), bad=None)
    assert incidents == []
    assert same_bits(model, expected)


def test_with_memory_to_spare_nothing_goes_to_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_step, "offloaded", pytest.fail)
    found = only(trained(monkeypatch, FakeDevice(1 << 30))[1])
    assert found.trials[0].verified
    assert not [note for note in found.notes if "host" in note or "memory" in note]


# -- five per cent of the device free


@pytest.mark.parametrize("sizes", [{"rows": 1024, "width": 64}, {"rows": 64, "width": 128}], ids=["rows", "weights"])
@pytest.mark.parametrize("middle", [Divided, *LONG])
def test_with_five_percent_free_at_the_peak_the_answer_is_the_usual_one(
    monkeypatch: pytest.MonkeyPatch, middle: type[nn.Module], sizes: dict[str, int]
) -> None:
    peak, expected, plain = undiagnosed(monkeypatch, middle, **sizes)
    usual = only(trained(monkeypatch, FakeDevice(), middle, **sizes)[1])
    device = FakeDevice(peak / 0.95)
    model, incidents, used = trained(monkeypatch, device, middle, **sizes)
    found = only(incidents)
    assert where(found) == where(usual)
    assert found.rows == usual.rows == (sizes["rows"] // 2,)
    assert {t.remedy.code for t in found.trials if t.verified} == {t.remedy.code for t in usual.trials if t.verified}
    assert device.peak_in_reruns <= device.capacity
    assert device.num_failed == 0
    assert used == plain
    assert same_bits(model, expected)


@pytest.mark.parametrize("middle", [Divided, *LONG])
def test_with_five_percent_free_when_the_diagnosis_begins_the_origin_is_named(
    monkeypatch: pytest.MonkeyPatch, middle: type[nn.Module]
) -> None:
    """Another program has taken the memory that the step itself had."""
    monkeypatch.setattr(offloading, "SMALL", 1 << 10)
    sizes = {"rows": 1024, "width": 64}
    peak, expected, plain = undiagnosed(monkeypatch, middle, **sizes)
    usual = only(trained(monkeypatch, FakeDevice(), middle, **sizes)[1])
    device = FakeDevice(free_in_reruns=peak // 20)
    model, incidents, used = trained(monkeypatch, device, middle, **sizes)
    found = only(incidents)
    assert where(found) == where(usual)
    assert found.rows == usual.rows == (512,)
    assert used == plain
    assert same_bits(model, expected)


@pytest.mark.parametrize("middle", [Divided, *LONG, pytest.param(Masked, marks=pytest.mark.slow)])
def test_half_of_what_a_step_takes_suffices_with_its_tensors_on_the_host(
    monkeypatch: pytest.MonkeyPatch, middle: type[nn.Module]
) -> None:
    sizes = {"rows": 1024, "width": 64, "depth": 12}
    usual = only(trained(monkeypatch, FakeDevice(), middle, **sizes)[1])
    peak, _, used = undiagnosed(monkeypatch, middle, **sizes)
    device = FakeDevice(free_in_reruns=(peak - used[BAD - 1]) // 2)
    found = only(trained(monkeypatch, device, middle, **sizes)[1])
    assert where(found) == where(usual)
    assert found.rows == usual.rows
    assert lead_up(found) == lead_up(usual) != []
    assert [note for note in found.notes if "lay on the host (a step takes " in note]
    assert device.num_failed == 0


def test_a_step_that_forbids_hooks_is_diagnosed_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """`torch.func.grad` raises where what is kept for backward has hooks."""

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        slope = torch.func.grad(lambda x: x.pow(2).sum())(batch[0])
        return loss_fn(model, batch) + 0.0 * slope.sum()

    usual = only(trained(monkeypatch, FakeDevice(), loss=loss)[1])
    peak, expected, plain = undiagnosed(monkeypatch, Divided, loss=loss)
    device = FakeDevice(free_in_reruns=(peak - plain[BAD - 1]) * 9 // 10)
    model, incidents, used = trained(monkeypatch, device, loss=loss)
    assert where(only(incidents)) == where(usual)
    assert used == plain
    assert same_bits(model, expected)


# -- what does not fit at all


@pytest.mark.parametrize("middle", [Divided, Rooted])
def test_what_it_would_have_needed_is_said_and_training_goes_on(
    monkeypatch: pytest.MonkeyPatch, middle: type[nn.Module]
) -> None:
    _, expected, plain = undiagnosed(monkeypatch, middle)
    model, incidents, used = trained(monkeypatch, FakeDevice(free_in_reruns=200), middle)
    because = only(incidents).because
    assert re.fullmatch(
        r"not diagnosed: needs at least [\d.]+ (bytes|[KM]iB) on cpu, (200 bytes|0.195 KiB) free", because
    )
    assert used == plain
    assert same_bits(model, expected)


def test_a_host_without_memory_for_the_copy_of_the_state_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    _, expected, plain = undiagnosed(monkeypatch, Divided)
    monkeypatch.setattr(device_memory, "free_host_bytes", lambda: 1 << 10)
    monkeypatch.setattr(device_memory, "copied_to_host", pytest.fail)
    model, incidents, used = trained(monkeypatch, FakeDevice(free_in_reruns=1 << 30))
    state = 3 * 4 * (4 * 64 * 64 + 65)  # weights and two moments
    needed = re.fullmatch(r"not diagnosed: needs ([\d.]+) MiB of host memory, 1 KiB free", only(incidents).because)
    assert needed is not None
    assert 0.99 * state <= float(needed[1]) * (1 << 20) <= 1.1 * state
    assert used == plain
    assert same_bits(model, expected)


def test_a_diagnosis_that_was_told_what_is_short_repeats_it_and_the_usual_one_says_nothing() -> None:
    answer = Diagnosis(symptom="nan_loss", phase="loss", because="found")

    def short(depth: str) -> Diagnosis:
        raise NotEnoughMemory("needs 3 GiB on cuda:0, 1 GiB free")

    assert isolated("nan_loss", short, depth="full").because == "not diagnosed: needs 3 GiB on cuda:0, 1 GiB free"
    assert isolated("nan_loss", lambda depth: answer, depth="full").notes == ()


def test_a_shortage_is_known_before_anything_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = [torch.ones(8)]
    assert short_of_memory(weights) == ""
    monkeypatch.setattr(device_memory, "spare_memory", lambda device: 7 << 30)
    monkeypatch.setattr(device_memory, "taken_by_a_step", lambda device: 12 << 30)
    assert short_of_memory(weights) == "a step takes 12 GiB and 7 GiB are free on cpu"
    monkeypatch.setattr(device_memory, "taken_by_a_step", lambda device: 7 << 30)
    assert short_of_memory(weights) == ""


# -- parts of a batch


@pytest.mark.slow
def test_rows_that_fail_only_together_are_not_blamed_by_a_part_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many rows are a failure here, and so are too few, of whatever batch."""

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        whole = (batch[:, :1] * 0 + 1).sum()  # 512 in a good batch
        return (model(batch).pow(2) + torch.sqrt((1000.5 - whole) * (whole - 400.5))).mean()

    def run(device: FakeDevice) -> Diagnosis:
        data = [torch.randn(512, 64), torch.randn(512, 64), torch.randn(512, 64), torch.randn(1024, 64)]
        with device.in_use(monkeypatch):
            torch.manual_seed(0)
            model = Net(nn.Identity(), 64, 4)
            with Guard(model, torch.optim.AdamW(model.parameters()), loss) as guard:
                for batch in data:
                    guard.step(batch)
            return only(guard.incidents)

    assert where(run(FakeDevice()))[1] == "sqrt"
    found = run(FakeDevice(free_in_reruns=300_000))
    assert found.origin is None
    assert found.rows is None
    assert found.because.startswith("not diagnosed: needs at least")


def test_rows_and_samples_of_a_part_are_those_of_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    def loss(model: nn.Module, batch: dict[str, Any]) -> Tensor:
        return loss_fn(model, batch["x"])

    data = [{"x": x, "id": torch.arange(512) + 1000 * i} for i, x in enumerate(batches(512, 64))]
    device = FakeDevice(free_in_reruns=150_000)
    with device.in_use(monkeypatch):
        torch.manual_seed(0)
        model = Net(Divided(), 64, 4)
        with Guard(model, torch.optim.AdamW(model.parameters()), loss) as guard:
            for batch in data:
                guard.step(batch)
    found = only(guard.incidents)
    assert [note for note in found.notes if re.fullmatch(r"rows \d+ to \d+ were run by themselves: .*", note)]
    assert found.rows == (256,)
    assert found.sample_ids == ("3256",)


# -- tensors on the host meanwhile


def gradients(model: nn.Module, batch: Tensor) -> list[Tensor]:
    model.zero_grad()
    loss_fn(model, batch).backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def test_gradients_are_the_same_bits_with_what_backward_reads_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offloading, "SMALL", 0)
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    model = nn.Sequential(layer, nn.Flatten(), nn.Linear(16 * 5, 1))
    batch = torch.randn(6, 5, 16)
    expected = gradients(model, batch)
    state = [("parameter", name, p) for name, p in model.named_parameters()]
    device = FakeDevice()
    with device.in_use(monkeypatch), offloaded(state, None):
        found = gradients(model, batch)
    assert len(found) == len(expected) > 10
    assert all(map(torch.equal, found, expected))


def test_an_expanded_tensor_is_kept_once_and_comes_back_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offloading, "SMALL", 0)
    moved: list[Tensor] = []
    to_host = device_memory.copied_to_host
    monkeypatch.setattr(device_memory, "spare_memory", lambda device: 1 << 30)
    monkeypatch.setattr(device_memory, "copied_to_host", lambda t: moved.append(t) or to_host(t))
    x, mask = torch.ones(3, 4, requires_grad=True), torch.arange(4.0).expand(3, 4)
    with offloaded((), None):
        out = (x * mask).sum() + (x * mask).sum()
    out.backward()
    assert [tuple(each.shape) for each in moved if each.data_ptr() == mask.data_ptr()] == [(1, 4)]
    assert torch.equal(x.grad, 2 * mask)  # type: ignore[arg-type]


def test_where_the_host_is_full_what_is_kept_stays_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offloading, "SMALL", 0)
    monkeypatch.setattr(device_memory, "spare_memory", lambda device: 1 << 30)
    monkeypatch.setattr(device_memory, "free_host_bytes", lambda: 0)
    monkeypatch.setattr(device_memory, "copied_to_host", pytest.fail)
    x = torch.ones(64, 64, requires_grad=True)
    with offloaded((), None):
        out = x.exp().sum()
    out.backward()
    assert torch.equal(x.grad, x.exp())  # type: ignore[arg-type]


# -- what is asked


def test_what_a_diagnosis_takes_is_not_taken_for_what_the_program_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    now = {"most": 100, "held": 40}
    cuda = torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: now["most"])
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: now["held"])
    monkeypatch.setattr(device_memory, "_apart", {})
    assert device_memory.taken_by_a_step(cuda) == 60
    with taken_apart():
        now["most"] = 900
        assert device_memory.taken_by_a_step(cuda) == 60
        with taken_apart():
            assert device_memory.taken_by_a_step(cuda) == 60
    assert device_memory.taken_by_a_step(cuda) == 60
    now["most"] = 1000  # the program itself
    assert device_memory.taken_by_a_step(cuda) == 960
    now["most"] = 50  # it has reset the count
    assert device_memory.taken_by_a_step(cuda) == 10


@pytest.mark.parametrize(
    ("size", "words"),
    [(0, "0 bytes"), (50, "50 bytes"), (1 << 20, "1 MiB"), (3 << 29, "1.5 GiB"), (1 << 29, "0.5 GiB")],
)
def test_bytes_are_given_in_the_largest_unit_of_which_there_is_a_tenth(size: int, words: str) -> None:
    assert in_words(size) == words

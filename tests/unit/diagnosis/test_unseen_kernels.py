"""Values born in kernels that torch does not see: Triton, CUDA extensions, and here numpy, which stands for them."""

from __future__ import annotations

import sys
import threading
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn

import steadygrad as sg
from steadygrad.diagnosis.trace.trace_log import OpRecord
from steadygrad.diagnosis.trace.user_frames import Stack
from steadygrad.diagnosis.trace.written_line import WrittenLine


class FastLog(torch.autograd.Function):
    """A logarithm whose output is allocated by torch and written by somebody else."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        with numpy.errstate(all="ignore"):
            numpy.log(x.detach().numpy(), out=out.numpy())
        ctx.save_for_backward(x)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad / x


class SlowRoot(torch.autograd.Function):
    """A square root whose backward is written by somebody else: infinite at zero."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        root = x.sqrt()
        ctx.save_for_backward(root)
        return root

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (root,) = ctx.saved_tensors
        out = torch.zeros_like(root)
        with numpy.errstate(all="ignore"):
            numpy.divide(grad.numpy(), 2 * root.numpy(), out=out.numpy())
        return out


class Model(nn.Module):
    def __init__(self, kernel: Any) -> None:
        super().__init__()
        self.kernel, self.first, self.head = kernel, nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.kernel.apply(nn.functional.softplus(self.first(x[:, :4])) * x[:, 4:]))


@pytest.mark.parametrize(("kernel", "gate", "phase"), [(FastLog, -0.5, "forward"), (SlowRoot, 0.0, "backward")])
def test_the_function_whose_kernel_wrote_it_is_named_and_never_a_finite_state(
    kernel: Any, gate: float, phase: str
) -> None:
    torch.manual_seed(0)
    model = Model(kernel)
    with sg.Guard(model, torch.optim.AdamW(model.parameters()), lambda m, b: m(b).square().mean()) as guard:
        for step in range(8):
            batch = torch.cat([torch.randn(8, 4), torch.ones(8, 1)], 1)
            if step == 5:
                batch[3, 4] = gate
            guard.step(batch)
    (incident,) = guard.incidents
    found = incident.diagnosis
    assert found is not None
    assert found.origin is not None
    assert (found.phase, found.origin.op) == (phase, kernel.__name__)
    assert found.rows == (3,)
    assert any("does not see" in note for note in found.notes)
    assert "drop_rows" in [trial.remedy.slug for trial in found.remedies]


class Normalised(torch.autograd.Function):
    """The memory is made in one line and written in another, in a function of the user's."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        size = x.detach().norm(dim=1, keepdim=True)
        launch(out, x, size)
        ctx.save_for_backward(size)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (size,) = ctx.saved_tensors
        return grad / size


def launch(out: Tensor, x: Tensor, size: Tensor) -> None:
    with numpy.errstate(all="ignore"):
        numpy.divide(x.detach().numpy(), size.numpy(), out=out.numpy())  # it is written here


def only_diagnosis(kernel: Any) -> Any:
    torch.manual_seed(0)
    model = Model(kernel)
    with sg.Guard(model, torch.optim.AdamW(model.parameters()), lambda m, b: m(b).square().mean()) as guard:
        for step in range(8):
            batch = torch.cat([torch.randn(8, 4), torch.ones(8, 1)], 1)
            if step == 5:
                batch[3, 4] = 0.0
            guard.step(batch)
    (incident,) = guard.incidents
    return incident.diagnosis


def test_the_line_that_launches_the_kernel_is_named_and_not_the_one_that_made_its_memory() -> None:
    found = only_diagnosis(Normalised)
    assert (
        found.origin.code_line
        == "numpy.divide(x.detach().numpy(), size.numpy(), out=out.numpy())  # it is written here"
    )
    assert found.origin.stack[1].startswith(found.origin.source.rpartition(":")[0])
    assert found.rows == (3,)


def test_a_trace_of_lines_by_another_tool_is_left_alone() -> None:
    seen: list[str] = []

    def theirs(frame: Any, event: str, argument: Any) -> Any:
        seen.append(event)
        return None

    before = sys.gettrace()
    sys.settrace(theirs)
    try:
        found = only_diagnosis(Normalised)
        after = sys.gettrace()
    finally:
        sys.settrace(before)
    assert after is theirs
    assert found.origin.op == "Normalised"
    assert seen


def test_nothing_traces_lines_after_a_diagnosis() -> None:
    before = sys.gettrace()
    only_diagnosis(Normalised)
    assert sys.gettrace() is before


class WrittenForEight(torch.autograd.Function):
    """A kernel for eight rows only, as one with a fixed grid."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        if len(x) != 8 or len(torch.unique(x, dim=0)) < 8:
            raise ValueError("written for eight rows, no two alike")
        out = torch.empty_like(x)
        size = x.detach().norm(dim=1, keepdim=True)
        launch(out, x, size)
        ctx.save_for_backward(size)
        return out

    backward = Normalised.backward


def test_rows_are_read_off_the_memory_where_the_kernel_runs_with_no_others() -> None:
    found = only_diagnosis(WrittenForEight)
    assert found.rows == (3,)


@torch.library.custom_op("steadygrad_tests::mean_of_some", mutates_args=())
def mean_of_some(x: Tensor, mask: Tensor) -> Tensor:
    if x.dtype is not torch.float32:
        raise KeyError("no kernel for this type")  # what a compiler of kernels raises is its own kind of error
    with numpy.errstate(all="ignore"):
        return torch.from_numpy((x * mask).detach().numpy().sum(1) / mask.numpy().sum(1))


mean_of_some.register_autograd(
    lambda ctx, grad: (grad[:, None] * ctx.saved_tensors[0], None),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[1]),
)


class SomeMeans(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return mean_of_some(self.head(x[:, :4]), x[:, 4:].expand(-1, 4).contiguous())


def test_a_kernel_that_raises_an_error_of_another_kind_for_wider_numbers_does_not_end_the_diagnosis() -> None:
    torch.manual_seed(0)
    model = SomeMeans()
    with sg.Guard(model, torch.optim.AdamW(model.parameters()), lambda m, b: m(b).square().mean()) as guard:
        for step in range(8):
            batch = torch.cat([torch.randn(8, 4), torch.ones(8, 1)], 1)
            if step == 5:
                batch[3, 4] = 0.0
            guard.step(batch)
    (incident,) = guard.incidents
    found = incident.diagnosis
    assert found is not None
    assert found.origin is not None
    assert (found.origin.op, found.rows) == ("mean_of_some", (3,))
    assert found.cause is not None
    assert found.cause.slug == "zero_division"


class Unshifted(torch.autograd.Function):
    """A softmax whose maximum is not subtracted."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        with numpy.errstate(all="ignore"):
            power = numpy.exp(x.detach().numpy())
            numpy.divide(power, power.sum(1, keepdims=True), out=out.numpy())
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (out,) = ctx.saved_tensors
        return out * (grad - (grad * out).sum(1, keepdim=True))


class Spread(torch.autograd.Function):
    """Divides by the standard deviation of a row."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        with numpy.errstate(all="ignore"):
            rows = x.detach().numpy()
            numpy.divide(rows, rows.std(1, keepdims=True), out=out.numpy())
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


class Broken(torch.autograd.Function):
    """Writes NaN for one row, whatever it is given."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        numpy.multiply(x.detach().numpy(), 1.0, out=out.numpy())
        if len(x) == 7:
            out.numpy()[3] = numpy.nan
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


class Called(nn.Module):
    def __init__(self, kernel: Any) -> None:
        super().__init__()
        self.kernel, self.head = kernel, nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.kernel.apply(x + 0.0 * self.head.weight.sum()))


@pytest.mark.parametrize(
    ("kernel", "row", "cause"),
    [
        (Normalised, torch.zeros(4), "zero_division"),
        (Spread, torch.full((4,), 2.5), "zero_division"),
        (Unshifted, torch.full((4,), 95.0), "exp_overflow"),
        (Broken, torch.ones(4), None),
    ],
)
def test_what_a_kernel_does_not_bear_is_found_by_giving_it_other_numbers(
    kernel: Any, row: Tensor, cause: str | None
) -> None:
    torch.manual_seed(0)
    model = Called(kernel)
    with sg.Guard(model, torch.optim.AdamW(model.parameters()), lambda m, b: m(b).square().mean()) as guard:
        for step in range(8):
            batch = torch.randn(8 - (step == 5), 4)
            if step == 5:
                batch[3] = row
            guard.step(batch)
    (incident,) = guard.incidents
    found = incident.diagnosis
    assert found is not None
    assert (found.cause.slug if found.cause else None) == cause
    assert found.origin is not None
    assert found.origin.op == kernel.__name__


def test_a_function_is_left_as_it_was_after_other_numbers_were_given_to_it() -> None:
    only_diagnosis(Normalised)
    assert "apply" not in vars(Normalised)
    assert Normalised.apply(torch.ones(1, 4)).tolist() == [[0.5, 0.5, 0.5, 0.5]]


def test_a_search_that_began_in_another_thread_leaves_the_trace_of_this_one_alone() -> None:
    def theirs(frame: Any, event: str, argument: Any) -> Any:
        return None

    found = WrittenLine(frozenset())
    record = OpRecord(0, "empty_like", "forward", None, Stack())
    other = threading.Thread(target=lambda: found.watcher(record, None, (), {}, torch.ones(3)))
    before = sys.gettrace()
    sys.settrace(theirs)
    try:
        with found.watching():
            other.start()
            other.join()
        after = sys.gettrace()
    finally:
        sys.settrace(before)
    assert after is theirs

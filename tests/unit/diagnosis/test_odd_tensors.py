"""A diagnosis meets tensors that cannot be described: it says so, reads around them, and never ends the program."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from steadygrad import Guard
from steadygrad.detect.tensors.readable_tensors import describable, has_values, once, values_of, why_not_read
from steadygrad.diagnosis.locate.op_capture import digest
from steadygrad.diagnosis.trace.tracer import Tracer

NAN = float("nan")


class Taken(Tensor):
    """A subclass that takes over every function."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(func, types, args, kwargs or {})


def quietly(make: Callable[[], Tensor]) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make()


def fake() -> Tensor:
    mode = importlib.import_module("torch._subclasses.fake_tensor").FakeTensorMode()
    with mode:
        made: Tensor = torch.ones(2)
    return made


def freed() -> Tensor:
    tensor = torch.ones(4)
    tensor.untyped_storage().resize_(0)
    return tensor


ODD: dict[str, tuple[Callable[[], Tensor], str]] = {
    "coo": (lambda: torch.eye(3).to_sparse(), "sparse tensor"),
    "csr": (lambda: torch.eye(3).to_sparse_csr(), "sparse CSR tensor"),
    "csc": (lambda: torch.eye(3).to_sparse_csc(), "sparse CSC tensor"),
    "bsr": (lambda: torch.eye(4).to_sparse_bsr((2, 2)), "sparse BSR tensor"),
    "nested": (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "nested tensor"),
    "jagged": (
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
        "tensor of class NestedTensor",
    ),
    "quantised": (lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8), "quantised tensor"),
    "meta": (lambda: torch.ones(2, device="meta"), "meta tensor"),
    "fake": (fake, "tensor of class FakeTensor"),
    "mkldnn": (lambda: torch.ones(3).to_mkldnn(), "tensor of layout _mkldnn"),
    "zero": (lambda: torch._efficientzerotensor((3,)), "zero tensor"),
    "taken over": (lambda: torch.ones(2).as_subclass(Taken), "tensor of class Taken"),
    "lazy": (lambda: nn.LazyLinear(2).weight, "tensor of class UninitializedParameter"),
    "freed": (freed, "tensor whose memory was freed"),
}


@pytest.mark.parametrize("name", ODD)
def test_a_tensor_that_cannot_be_described_is_named_with_the_reason(name: str) -> None:
    make, why = ODD[name]
    tensor = quietly(make)
    assert why_not_read(tensor) == why
    assert not describable(tensor)
    assert not has_values(tensor)


def test_a_tensor_inside_a_function_transform_is_not_described() -> None:
    seen: list[str | None] = []

    def look(x: Tensor) -> Tensor:
        seen.append(why_not_read(x))
        return x.sum()

    torch.func.vmap(look)(torch.ones(2, 3))
    torch.func.grad(look)(torch.ones(3))
    assert seen == ["tensor inside a function transform (torch.func)"] * 2


@pytest.mark.parametrize(
    "tensor",
    [
        torch.ones(3),
        nn.Parameter(torch.ones(3)),
        torch.ones(3, dtype=torch.complex64).conj(),
        torch.ones(3).to(torch.float8_e4m3fn),
        torch.ones(4).view(2, 2).t(),
        torch.ones(1).expand(10**6, 10**6),
        torch.ones(3, requires_grad=True)[1:],
        torch.tensor(1.0),
    ],
)
def test_an_ordinary_tensor_has_values(tensor: Tensor) -> None:
    assert why_not_read(tensor) is None
    assert has_values(tensor)


def test_a_tensor_without_entries_or_of_integers_or_of_packed_numbers_has_no_values_to_read() -> None:
    packed = torch.zeros(4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    for tensor in (torch.ones(0, 3), torch.arange(3), torch.ones(3, dtype=torch.bool), packed):
        assert describable(tensor)
        assert not has_values(tensor)


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc])
def test_of_a_sparse_tensor_the_stored_numbers_can_be_asked_for(layout: torch.layout) -> None:
    dense = torch.diag(torch.tensor([1.0, NAN, 3.0]))
    values = values_of(dense.to_sparse(layout=layout))
    assert values is not None
    assert torch.isnan(values).tolist() == [False, True, False]


def test_an_expanded_tensor_is_read_once_and_counted_as_often_as_it_occurs() -> None:
    wide = torch.tensor([[1.0], [NAN]]).expand(2, 10**9)
    few, times = once(wide)
    assert (tuple(few.shape), times) == ((2, 1), 10**9)
    told = digest(wide)
    assert (told.num_nan, told.absmax, told.shape) == (10**9, 1.0, (2, 10**9))


def test_a_large_tensor_that_is_not_contiguous_is_digested_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    captured_op = importlib.import_module("steadygrad.diagnosis.locate.op_capture")
    monkeypatch.setattr(captured_op, "PIECE", 8)
    tensor = torch.arange(60.0).view(3, 4, 5).permute(2, 0, 1).clone(memory_format=torch.preserve_format)
    tensor = tensor.transpose(0, 1)
    tensor[1, 2, 3] = float("inf")
    told = digest(tensor)
    assert (told.num_inf, told.num_nan, told.num_zero, told.absmax) == (1, 0, 1, 59.0)


# -- whole steps, traced


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.second(torch.tanh(self.first(x)))
        return out


def second_derivative(model: nn.Module, batch: Any) -> Tensor:
    loss = F.l1_loss(model(batch[0]), batch[1])
    parameters = list(model.parameters())
    first = torch.autograd.grad(loss, parameters, create_graph=True)
    second = torch.autograd.grad(sum(g.sum() for g in first), parameters, create_graph=True)  # type: ignore[arg-type]
    return loss + 1e-3 * sum((term * term).sum() for term in second)


def sparse_product(layout: torch.layout) -> Callable[[nn.Module, Any], Tensor]:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        out = torch.sparse.mm(torch.eye(8).to_sparse(layout=layout), model(batch[0]))
        return (out - batch[1]).pow(2).mean()

    return loss


def jagged(model: nn.Module, batch: Any) -> Tensor:
    rows = torch.nested.nested_tensor(list(batch[0].split([3, 5])), layout=torch.jagged)
    inner: Any = model.get_submodule("second")(torch.tanh(model.get_submodule("first")(rows)))
    return (inner.values() - batch[1]).pow(2).mean()


def nested(model: nn.Module, batch: Any) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rows = torch.nested.as_nested_tensor(list(batch[0].split([3, 5])))
    padded = rows.to_padded_tensor(0.0).view(-1, 4)[[0, 1, 2, 5, 6, 7, 8, 9]]
    return (model(padded) - batch[1]).pow(2).mean()


def batched_by_vmap(model: nn.Module, batch: Any) -> Tensor:
    def one(x: Tensor, y: Tensor) -> Tensor:
        return (model(x) - y).pow(2).sum()

    each: Tensor = torch.func.vmap(one)(*batch)
    return each.mean()


def gradient_penalty_by_func(model: nn.Module, batch: Any) -> Tensor:
    def output(x: Tensor) -> Tensor:
        return model(x).sum()  # type: ignore[no-any-return]

    slope: Tensor = torch.func.grad(output)(batch[0])
    return (model(batch[0]) - batch[1]).pow(2).mean() + slope.pow(2).mean()


def per_sample_gradients(model: nn.Module, batch: Any) -> Tensor:
    parameters = dict(model.named_parameters())

    def one(values: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        out: Tensor = torch.func.functional_call(model, values, (x[None],))
        return (out - y).pow(2).sum()

    each = torch.func.vmap(torch.func.grad(one), in_dims=(None, 0, 0))(parameters, *batch)
    size = sum(g.pow(2).sum() for g in each.values())
    return (model(batch[0]) - batch[1]).pow(2).mean() + 1e-3 * size


def jacobian_vector_product(model: nn.Module, batch: Any) -> Tensor:
    _, moved = torch.func.jvp(lambda x: model(x), (batch[0],), (torch.ones_like(batch[0]),))
    return (model(batch[0]) - batch[1]).pow(2).mean() + moved.pow(2).mean()


def complex_numbers(model: nn.Module, batch: Any) -> Tensor:
    waves = torch.fft.fft(batch[0], dim=-1)
    return (model(torch.fft.ifft(waves.conj()).real) - batch[1]).pow(2).mean() + 1e-3 * waves.abs().mean()


def eight_bits(model: nn.Module, batch: Any) -> Tensor:
    x = batch[0].to(torch.float8_e5m2).to(torch.float32)
    return (model(x) - batch[1]).pow(2).mean()


def quantised(model: nn.Module, batch: Any) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scale = torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.quint8).dequantize()
    return (model(batch[0] * scale) - batch[1]).pow(2).mean()


def expanded(model: nn.Module, batch: Any) -> Tensor:
    out = model(batch[0])
    return (out.expand(8, 64) - batch[1].expand(8, 64)).pow(2).mean() + out.as_strided((4, 4), (1, 1)).mean()


def empty_parts(model: nn.Module, batch: Any) -> Tensor:
    none = batch[0][:0]
    return (model(batch[0]) - batch[1]).pow(2).mean() + model(none).sum()


def on_meta(model: nn.Module, batch: Any) -> Tensor:
    shape = torch.empty(8, 4, device="meta").matmul(torch.empty(4, 2, device="meta")).shape
    return (model(batch[0]) - batch[1]).pow(2).mean() * (shape[1] / 2)


def taken_over(model: nn.Module, batch: Any) -> Tensor:
    out = (model(batch[0].as_subclass(Taken)) - batch[1]).pow(2).mean()
    return out.as_subclass(Tensor)


LOSSES: dict[str, Callable[[nn.Module, Any], Tensor]] = {
    "second derivative of abs": second_derivative,
    "sparse product": sparse_product(torch.sparse_coo),
    "csr product": sparse_product(torch.sparse_csr),
    "jagged": jagged,
    "nested": nested,
    "vmap": batched_by_vmap,
    "func.grad": gradient_penalty_by_func,
    "per sample gradients": per_sample_gradients,
    "jvp": jacobian_vector_product,
    "complex": complex_numbers,
    "float8": eight_bits,
    "quantised": quantised,
    "expanded": expanded,
    "empty": empty_parts,
    "meta": on_meta,
    "subclass": taken_over,
}


def batches(num: int) -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    return [(torch.randn(8, 4), torch.randn(8, 1)) for _ in range(num)]


@pytest.mark.parametrize("name", LOSSES)
def test_tracing_a_step_changes_nothing_of_it(name: str) -> None:
    loss_fn, (batch,) = LOSSES[name], batches(1)
    torch.manual_seed(1)
    model = Net()
    plain = loss_fn(model, batch)
    plain.backward()
    expected = [p.grad for p in model.parameters()]
    model.zero_grad()
    tracer = Tracer(model)
    with tracer.tracing():
        loss = loss_fn(model, batch)
        tracer.stage = "backward"
        loss.backward()
    tracer.trace.finish()
    assert torch.equal(loss, plain)
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        assert parameter.grad is not None
        assert gradient is not None
        assert torch.equal(parameter.grad, gradient)
    assert len(tracer.trace.records) > 5
    assert not [why for why in tracer.trace.unread if "failed" in why]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("csr product", "sparse CSR tensor"),
        ("jagged", "tensor of class NestedTensor"),
        ("nested", "nested tensor"),
        ("quantised", "quantised tensor"),
        ("meta", "meta tensor"),
    ],
)
def test_the_trace_mentions_what_it_did_not_read(name: str, why: str) -> None:
    model, (batch,) = Net(), batches(1)
    tracer = Tracer(model)
    with tracer.tracing():
        LOSSES[name](model, batch).backward()  # type: ignore[no-untyped-call]
    assert why in tracer.trace.unread


@pytest.mark.parametrize("name", LOSSES)
def test_a_bad_batch_beside_odd_tensors_is_refused_diagnosed_and_training_goes_on(name: str) -> None:
    data = batches(7)
    data[3][0][2, 1] = NAN
    torch.manual_seed(1)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with Guard(model, optimizer, LOSSES[name]) as guard:
        for batch in data:
            guard.step(batch)
    assert guard.summary()["skipped"] == 1
    assert all(bool(torch.isfinite(p).all()) for p in model.parameters())
    diagnosis = guard.incidents[0].diagnosis
    assert diagnosis is not None
    assert diagnosis.cause is not None
    assert diagnosis.cause.slug == "bad_input"
    assert not getattr(guard, "faults", ())


def test_a_sparse_embedding_is_diagnosed_by_the_values_it_stores() -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(20, 4, sparse=True), nn.Linear(4, 1)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.head(self.table(x))
            return out

    torch.manual_seed(0)
    model = Words()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with Guard(model, optimizer, lambda m, b: (m(b[0]) - b[1]).pow(2).mean()) as guard:
        for step in range(6):
            target = torch.randn(8, 1)
            if step == 3:
                target[2] = NAN
            guard.step((torch.arange(8) + step, target))
    diagnosis = guard.incidents[0].diagnosis
    assert diagnosis is not None
    assert diagnosis.cause is not None
    assert diagnosis.cause.slug == "bad_input"
    assert diagnosis.rows == (2,)


def test_a_failure_of_the_tracer_itself_never_reaches_the_users_code(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = importlib.import_module("steadygrad.diagnosis.trace.tracer")

    def broken(_tensor: Tensor) -> Tensor:
        raise RuntimeError("a bug of ours")

    monkeypatch.setattr(trace, "_absmax", broken)
    model, (batch,) = Net(), batches(1)
    tracer = Tracer(model)
    with tracer.tracing():
        loss = (model(batch[0]) - batch[1]).pow(2).mean()
        loss.backward()
    tracer.trace.finish()
    assert any("a bug of ours" in why for why in tracer.trace.unread)
    assert all(p.grad is not None for p in model.parameters())

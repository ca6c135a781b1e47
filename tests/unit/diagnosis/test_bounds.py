"""Before a changed step launches a kernel, its indices are checked; what cannot be checked is refused."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from steadygrad.diagnosis.isolation.index_bounds import BoundsChecked, NotChecked, OutOfBounds, no_unseen_kernels

X = torch.arange(12.0).view(4, 3)
TABLE = torch.ones(5, 2)
LOGITS = torch.randn(3, 4)

# Each with indices that are fine, and the same with one that is not.
INDEXING: dict[str, tuple[Callable[[Tensor], Any], list[int], list[int]]] = {
    "index": (lambda i: X[i], [0, 3, -4], [0, 4]),
    "index below": (lambda i: X[i], [0, -4], [0, -5]),
    "index of a later dimension": (lambda i: X[:, i], [0, 2], [0, 3]),
    "index after a mask": (lambda i: X[torch.ones(4, dtype=torch.bool)][:, i], [2], [3]),
    "index_put": (lambda i: X.clone().index_put_((i,), torch.ones(3)), [3], [4]),
    "assignment": (lambda i: X.clone().__setitem__(i, 0.0), [3], [4]),
    "index_select": (lambda i: X.index_select(1, i), [2, 0], [3]),
    "index_add": (lambda i: torch.zeros(4, 3).index_add_(0, i, X[:2]), [0, 3], [0, 4]),
    "index_copy": (lambda i: X.clone().index_copy_(0, i, torch.ones(2, 3)), [0, 1], [0, 9]),
    "index_fill": (lambda i: X.clone().index_fill_(0, i, 1.0), [0, 1], [0, 9]),
    "gather": (lambda i: X.gather(1, i.view(-1, 1)), [0, 2], [0, 3]),
    "scatter": (lambda i: X.clone().scatter_(1, i.view(-1, 1), 1.0), [0, 2], [0, 3]),
    "scatter_add": (lambda i: X.clone().scatter_add_(0, i.view(1, -1), torch.ones(1, 2)), [0, 3], [0, 4]),
    "scatter_reduce": (lambda i: X.clone().scatter_reduce_(0, i.view(1, -1), torch.ones(1, 2), "sum"), [3, 0], [4, 0]),
    "take": (lambda i: X.take(i), [11, -12], [12]),
    "embedding": (lambda i: F.embedding(i, TABLE), [0, 4], [0, 5]),
    "negative embedding": (lambda i: F.embedding(i, TABLE), [0, 4], [-1]),
    "embedding_bag": (lambda i: F.embedding_bag(i, TABLE, torch.tensor([0, 1])), [0, 4], [0, 5]),
    "offsets": (lambda i: F.embedding_bag(torch.tensor([1, 2]), TABLE, i), [0, 1], [0, 3]),
    "cross_entropy": (lambda i: F.cross_entropy(LOGITS, i), [0, 3, 2], [0, 4, 2]),
    "ignored class": (lambda i: F.cross_entropy(LOGITS, i), [0, 3, -100], [0, 3, -99]),
    "nll 2d": (lambda i: F.nll_loss(torch.randn(1, 4, 3, 1), i.view(1, 3, 1)), [0, 3, 1], [0, 4, 1]),
    "multi_margin": (lambda i: F.multi_margin_loss(LOGITS, i), [0, 3, 2], [0, 4, 2]),
    "one_hot": (lambda i: F.one_hot(i, 4), [0, 3], [0, 4]),
    "repeat_interleave": (lambda i: X.repeat_interleave(i, 0), [1, 0, 2, 1], [1, -1, 2, 1]),
}


@pytest.mark.parametrize("name", INDEXING)
def test_an_index_outside_of_its_tensor_is_refused_before_the_kernel_is_launched(name: str) -> None:
    run, good, bad = INDEXING[name]
    launched: list[str] = []

    class Launches(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            launched.append(str(func))
            return func(*args, **(kwargs or {}))

    with BoundsChecked(rows=True, strict=True):
        run(torch.tensor(good))
    with Launches(), BoundsChecked(rows=True, strict=True), pytest.raises((OutOfBounds, RuntimeError)) as raised:
        run(torch.tensor(bad))
    assert isinstance(raised.value, OutOfBounds) or name == "one_hot"
    indexing = ("index", "gather", "scatter", "take", "embedding", "nll", "margin", "put", "repeat")
    assert not any(op in line for line in launched[-1:] for op in indexing if "aminmax" not in line)


def test_an_index_that_is_only_wrong_in_backward_is_refused_there() -> None:
    class Picks(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
            return grad[torch.tensor([0, 7, 1, 2])]

    x = torch.ones(4, requires_grad=True)
    with BoundsChecked(rows=True):
        out = Picks.apply(x).sum()
        with pytest.raises(OutOfBounds):
            out.backward()


@pytest.mark.parametrize(
    ("run", "bad"),
    [
        (lambda p: F.binary_cross_entropy(p, torch.ones(2)), torch.tensor([0.5, 1.5])),
        (lambda p: F.binary_cross_entropy(p, torch.ones(2)), torch.tensor([0.5, float("nan")])),
        (lambda p: torch.bernoulli(p), torch.tensor([0.5, 1.5])),
        (lambda p: torch.multinomial(p, 1), torch.tensor([0.5, float("nan")])),
        (lambda p: torch.multinomial(p, 1), torch.tensor([0.5, -1.0])),
        (lambda p: torch._assert_async((p <= 1).all()), torch.tensor([0.5, 1.5])),
        (lambda p: torch.zeros(4).masked_scatter_(torch.ones(4, dtype=torch.bool), p), torch.tensor([0.5, 1.5])),
    ],
)
def test_values_that_a_device_would_assert_on_are_refused_too(run: Callable[[Tensor], Any], bad: Tensor) -> None:
    with BoundsChecked(rows=False, strict=True), pytest.raises(OutOfBounds):
        run(bad)
    with BoundsChecked(rows=False, strict=True):
        run(torch.tensor([0.5, 0.25, 0.1, 0.2]) if "masked" in str(run.__code__.co_names) else torch.tensor([0.5, 0.5]))


def test_ordinary_training_code_with_integers_is_not_refused() -> None:
    torch.manual_seed(0)

    class Small(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(11, 8, padding_idx=0), nn.Embedding(6, 8)
            self.block = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
            self.rnn, self.conv, self.head = nn.GRU(8, 8), nn.Conv1d(8, 8, 3, padding=1), nn.Linear(8, 11)

        def forward(self, ids: Tensor) -> Tensor:
            hidden = self.words(ids) + self.places(torch.arange(ids.shape[1]))
            hidden = self.block(hidden, src_key_padding_mask=ids == 0)
            hidden = self.rnn(hidden)[0] + self.conv(hidden.transpose(1, 2)).transpose(1, 2)
            pooled = F.max_pool1d(hidden.transpose(1, 2), 2).mean(-1, keepdim=True).transpose(1, 2)
            out: Tensor = self.head(hidden + pooled)
            return out

    model = Small()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    ids = torch.randint(1, 11, (4, 6))
    with BoundsChecked(rows=True, strict=True):
        for _ in range(2):
            logits = model(ids)
            labels = torch.where(ids > 5, ids, -100)
            counts = torch.bincount(ids.view(-1), minlength=11)
            best = logits.topk(3, -1).indices.sort().values
            loss = F.cross_entropy(logits.view(-1, 11), labels.view(-1))
            loss = loss + (best.float().std() * 0 + counts.max() * 0) + logits.gather(-1, ids.unsqueeze(-1)).mean()
            rows = torch.cat([ids, ids.flip(0)]).cumsum(0).unique()
            loss = loss + rows.sum().item() * 0
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    assert bool(torch.isfinite(loss))


def test_an_operation_that_takes_integers_and_is_not_known_is_refused_where_the_device_would_not_raise() -> None:
    lengths = torch.tensor([1, 3])
    data = torch.ones(4)
    with BoundsChecked(rows=True):
        torch.segment_reduce(data, "sum", lengths=lengths)
    with BoundsChecked(rows=True, strict=True), pytest.raises(NotChecked, match="segment_reduce takes integers"):
        torch.segment_reduce(data, "sum", lengths=lengths)


def test_a_kernel_of_an_extension_is_refused_for_other_rows_and_let_through_for_other_values() -> None:
    library = torch.library.Library("steady_test_bounds", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CPU")
    try:
        twice = torch.ops.steady_test_bounds.twice
        with BoundsChecked(rows=True, strict=True), pytest.raises(NotChecked, match="extension"):
            twice(torch.ones(2))
        with BoundsChecked(rows=False, strict=True):
            assert twice(torch.ones(2)).tolist() == [2.0, 2.0]
        with BoundsChecked(rows=False, strict=True), pytest.raises(NotChecked, match="extension"):
            twice(torch.ones(2, dtype=torch.int64))
    finally:
        library._destroy()


def test_a_sparse_matrix_is_refused_for_other_rows() -> None:
    with BoundsChecked(rows=True, strict=True), pytest.raises(NotChecked, match="sparse tensor"):
        torch.sparse.mm(torch.eye(3).to_sparse(), torch.ones(3, 2))


def test_kernels_that_torch_does_not_see_are_refused_while_rows_are_other(monkeypatch: pytest.MonkeyPatch) -> None:
    class JITFunction:
        def run(self, value: int) -> int:
            return value

    module = types.ModuleType("triton.runtime.jit")
    module.JITFunction = JITFunction  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "triton.runtime.jit", module)
    with no_unseen_kernels(), pytest.raises(NotChecked):
        JITFunction().run(1)
    assert JITFunction().run(1) == 1


IDS = torch.arange(24).view(2, 3, 4)

# What programs do with class numbers, positions and masks of numbers before anything is looked up with them.
COMPUTING: dict[str, Callable[[], Any]] = {
    "labels of a shifted text": lambda: IDS[:, :, 1:].flatten(),
    "reshape": lambda: IDS.transpose(0, 1).reshape(6, 4),
    "whole division": lambda: IDS // 3,
    "one minus a mask": lambda: 1 - (IDS > 3).long(),
    "number minus tensor": lambda: torch.rsub(IDS, IDS),
    "absolute in place": lambda: IDS.clone().abs_(),
    "comparison in place": lambda: IDS.clone().gt_(3),
    "transposed in place": lambda: IDS.clone().transpose_(0, 1),
    "turned": lambda: torch.rot90(IDS, 1, (1, 2)),
    "a diagonal": lambda: torch.diagonal_scatter(torch.zeros(3, 3).long(), torch.ones(3).long()),
    "blocks": lambda: torch.block_diag(IDS[0], IDS[1]),
    "product of whole numbers": lambda: IDS[0] @ IDS[1].T,
    "pieces": lambda: torch.unsafe_split(IDS, 2, 2),
}


@pytest.mark.parametrize("name", COMPUTING)
@pytest.mark.parametrize("rows", [False, True])
def test_whole_numbers_that_are_only_computed_with_are_no_reason_to_refuse(name: str, rows: bool) -> None:
    with BoundsChecked(rows=rows, strict=True):
        COMPUTING[name]()


def test_an_operation_whose_own_numbers_are_places_is_refused() -> None:
    with pytest.raises(NotChecked), BoundsChecked(rows=False, strict=True):
        torch._convert_indices_from_coo_to_csr(torch.tensor([0, 1, 3]), 4)

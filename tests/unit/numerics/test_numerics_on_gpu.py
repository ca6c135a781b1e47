"""On a GPU the losses give what they give on a CPU, and never ask the host to wait."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from steadygrad import numerics as sgn
from steadygrad.numerics.notice_board import Board

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

LABELS = torch.tensor([3, -100, 7, 1, -100, 0])

LOSSES: dict[str, Callable[[Tensor, Tensor, Board], Tensor]] = {
    "cross_entropy": lambda x, y, b: sgn.masked_cross_entropy(x, LABELS.to(x.device, non_blocking=True), report_to=b),
    "z": lambda x, y, b: sgn.z_loss(x, report_to=b),
    "forward": lambda x, y, b: sgn.distillation_loss(x, y, temperature=2.0, report_to=b),
    "reverse": lambda x, y, b: sgn.distillation_loss(x, y, kind="reverse", report_to=b),
    "jsd": lambda x, y, b: sgn.distillation_loss(x, y, kind="jsd", report_to=b),
    "cosine": lambda x, y, b: sgn.cosine_loss(x, y.nan_to_num(neginf=0.0), report_to=b),
    "policy": lambda x, y, b: sgn.policy_gradient_loss(x, y, y[:, 0], ref_logp=y, kl_weight=0.1, report_to=b).loss,
    "dice": lambda x, y, b: sgn.dice_loss(x[None], y[None] > 0, report_to=b),
    "bound": lambda x, y, b: sgn.bound_logits(x, 2.0).float().sum(),
}


@pytest.fixture
def without_syncs() -> Iterator[None]:
    torch.cuda.synchronize()
    yield
    torch.cuda.set_sync_debug_mode("default")


@pytest.mark.usefixtures("without_syncs")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", LOSSES)
def test_the_gpu_gives_what_the_cpu_gives_and_nothing_waits(name: str, dtype: torch.dtype) -> None:
    x, y = torch.randn(6, 40).to(dtype), torch.randn(6, 40).to(dtype)
    if name in ("forward", "reverse", "jsd"):
        y[:, 30:] = -math.inf
    loss = LOSSES[name]
    on_cpu = x.clone().requires_grad_()
    wanted = loss(on_cpu, y, Board())
    wanted.backward()
    on_gpu, other, board = x.cuda().requires_grad_(), y.cuda(), Board()
    LABELS.cuda()
    torch.cuda.synchronize()
    if name != "cross_entropy":  # the copy of its labels from pageable memory is one
        torch.cuda.set_sync_debug_mode("error")
    made = loss(on_gpu, other, board)
    made.backward()
    board.take(wait=False)
    torch.cuda.set_sync_debug_mode("default")
    torch.testing.assert_close(made.cpu(), wanted.detach(), rtol=1e-4, atol=1e-5)
    assert on_gpu.grad is not None
    torch.testing.assert_close(on_gpu.grad.cpu(), on_cpu.grad, rtol=2e-2, atol=1e-4)


def test_counts_on_the_gpu_wait_for_a_taker_that_waits() -> None:
    board = Board()
    sgn.masked_mean(torch.ones(3, device="cuda"), torch.zeros(3, dtype=torch.bool, device="cuda"), report_to=board)
    assert board.take(wait=False) == ()
    assert [found.subject for found in board.take()] == ["empty_mask"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_processor_repairs_on_the_gpu_as_on_the_cpu(dtype: torch.dtype) -> None:
    scores = (torch.randn(4, 50) * 20).to(dtype)
    scores[0, 3], scores[1, 4], scores[2, :9] = math.nan, math.inf, -math.inf
    ids = torch.zeros(4, 2, dtype=torch.long)
    made = [sgn.NumericalStabilityLogitsProcessor(report_to=Board())(ids, s) for s in (scores, scores.cuda())]
    torch.testing.assert_close(made[1].cpu(), made[0])

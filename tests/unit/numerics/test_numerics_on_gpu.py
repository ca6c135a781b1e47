"""On a GPU the losses give what they give on a CPU, and never ask the host to wait."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from steadygrad import numerics as sgn
from steadygrad.numerics.published_findings import Board

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
    "normalised": lambda x, y, b: sgn.normalised_mse(x, y.nan_to_num(neginf=0.0), report_to=b),
    "masks": lambda x, y, b: sgn.mask_bce_loss(x[None], y[None] > 0, report_to=b),
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


def both_ways(loss: Callable[..., Tensor], *given: Tensor) -> list[tuple[Tensor, list[Tensor | None]]]:
    """Loss and gradients on the GPU, where kernels do it, and on the CPU."""
    made = []
    for device in ("cuda", "cpu"):
        leaves = [each.to(device).requires_grad_() for each in given]
        value = loss(*leaves)
        value.backward()
        made.append((value.detach().cpu(), [None if leaf.grad is None else leaf.grad.cpu() for leaf in leaves]))
    return made


def on(device: torch.device, *given: Tensor) -> list[Tensor]:
    return [each.to(device) for each in given]


@pytest.mark.parametrize("masked", ["nothing", "vocabulary", "tokens of each row"])
@pytest.mark.parametrize("kind", ["forward", "reverse", "jsd"])
def test_kernels_of_the_divergences_give_both_gradients_with_every_kind_of_hole(kind: str, masked: str) -> None:
    """Rows longer than a block of the kernel, -inf on either side, a row of nothing, a NaN where nothing counts."""
    student, teacher = torch.randn(9, 5001) * 3, torch.randn(9, 5001) * 3
    student[0, :40], teacher[0, 20:90], teacher[3] = -math.inf, -math.inf, -math.inf
    student[5, 7] = math.nan
    counts = torch.arange(9) != 5
    allowed = {"nothing": None, "vocabulary": torch.rand(5001) > 0.3, "tokens of each row": torch.rand(9, 5001) > 0.3}

    def loss(s: Tensor, t: Tensor) -> Tensor:
        may = allowed[masked]
        (mask,) = on(s.device, counts)
        return sgn.distillation_loss(
            s, t, kind=kind, temperature=1.7, beta=0.3, mask=mask, vocab_mask=None if may is None else may.to(s.device),
            report_to=Board(),
        )  # fmt: skip

    (gpu, gpu_grads), (cpu, cpu_grads) = both_ways(loss, student, teacher)
    torch.testing.assert_close(gpu, cpu, rtol=1e-5, atol=1e-6)
    for one, other in zip(gpu_grads, cpu_grads, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-7)


def test_the_kernel_of_cross_entropy_reads_rows_of_a_wider_matrix_and_leaves_others_alone() -> None:
    wide = torch.randn(7, 9000) * 4
    wide[2, 5], wide[4, :30] = math.nan, -math.inf
    labels = torch.tensor([1, 8191, -100, 40, 5000, 0, 77])

    def loss(x: Tensor) -> Tensor:
        part = x[:, :8192]  # rows that do not lie side by side
        return sgn.masked_cross_entropy(part, *on(x.device, labels), z_weight=1e-2, report_to=Board())

    (gpu, (gpu_grad,)), (cpu, (cpu_grad,)) = both_ways(loss, wide)
    torch.testing.assert_close(gpu, cpu, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(gpu_grad, cpu_grad, rtol=1e-4, atol=1e-7)
    assert gpu_grad is not None
    assert not gpu_grad[2].any()


@pytest.mark.parametrize("name", ["bound", "cap", "normalise"])
def test_kernels_of_single_numbers_and_vectors_keep_signs_ends_and_zero_vectors(name: str) -> None:
    x = torch.randn(6, 3001) * 60
    x[0, :5], x[1], x[2] = torch.tensor([math.inf, -math.inf, 0.0, -0.0, 1e-6]), 0.0, x[2] * 1e-7
    if name == "normalise":
        x = x[1:]
    ways: dict[str, Callable[[Tensor], Tensor]] = {
        "bound": lambda v: sgn.bound_logits(v, 30.0),
        "cap": lambda v: sgn.soft_cap_logits(v, 30.0),
        "normalise": lambda v: sgn.safe_normalise(v, report_to=Board()),
    }
    slopes = torch.randn_like(x)
    (gpu, (gpu_grad,)), (cpu, (cpu_grad,)) = both_ways(lambda v: (ways[name](v) * slopes.to(v.device)).sum(), x)
    torch.testing.assert_close(gpu, cpu, rtol=1e-4, atol=1e-2)
    torch.testing.assert_close(gpu_grad, cpu_grad, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ways[name](x.cuda()).cpu(), ways[name](x), rtol=1e-5, atol=1e-6)
    if name == "bound":
        inside = x.abs() <= 15
        assert torch.equal(ways[name](x.cuda()).cpu()[inside], x[inside])


def test_a_mean_of_the_largest_floats_does_not_overflow_on_a_gpu() -> None:
    huge = torch.full((1000,), 3e38, device="cuda", requires_grad=True)
    made = sgn.masked_mean(huge, torch.arange(1000, device="cuda") < 900, report_to=Board())
    made.backward()
    torch.testing.assert_close(made.item(), 3e38, rtol=1e-6, atol=0.0)
    assert huge.grad is not None
    torch.testing.assert_close(huge.grad.sum().item(), 1.0, rtol=1e-5, atol=0.0)


@pytest.mark.parametrize("loss", [sgn.cosine_loss, sgn.normalised_mse])
def test_the_kernel_of_directions_gives_both_gradients_at_zero_vectors_and_leaves_others_alone(
    loss: Callable[..., Tensor],
) -> None:
    one, other = torch.randn(3, 4, 1500), torch.randn(3, 4, 1500)
    one[0, 0], other[0, 1], one[0, 2], one[1, 0] = 0.0, 0.0, one[0, 2] * 1e-6, one[1, 0] * 1e15
    one[2, 3, 7] = math.nan
    counts = torch.ones(3, 4, dtype=torch.bool)
    counts[2, 3] = False
    boards = [Board(), Board()]

    def own(x: Tensor, y: Tensor) -> Tensor:
        return loss(x, y, mask=counts.to(x.device), report_to=boards[x.is_cuda])

    (gpu, gpu_grads), (cpu, cpu_grads) = both_ways(own, one, other)
    torch.testing.assert_close(gpu, cpu, rtol=1e-5, atol=1e-6)
    for mine, theirs in zip(gpu_grads, cpu_grads, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)
    assert [board.counts() for board in boards] == [{"zero_vector": 3}] * 2


def test_the_kernel_of_policy_tokens_gives_the_statistics_of_the_cpu() -> None:
    logp = -torch.rand(5, 700) * 3
    old, reference = logp + 0.5 * torch.randn_like(logp), logp + 0.3 * torch.randn_like(logp)
    mask, advantages = torch.rand(5, 700) > 0.3, torch.randn(5)
    logp[0, 0], mask[0, 0], old[1, 3], mask[1, 3], logp[2, 5], mask[2, 5] = (
        -math.inf,
        True,
        -60.0,
        True,
        math.nan,
        False,
    )

    def on_device(name: str) -> sgn.PolicyLoss:
        now, then, gained, seen, ref = on(torch.device(name), logp, old, advantages, mask, reference)
        return sgn.policy_gradient_loss(now, then, gained, mask=seen, ref_logp=ref, kl_weight=0.1, report_to=Board())

    for one, other in zip(on_device("cpu"), on_device("cuda"), strict=True):
        torch.testing.assert_close(other.cpu(), one, rtol=1e-5, atol=1e-6)

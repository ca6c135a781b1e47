"""Kernels that are wrong on a device: cause and remedy through `sg.Guard`, and every switch as it was."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import steadygrad as sg
from steadygrad.diagnosis.interventions.backend.flags import SWITCHES

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


class Attention(nn.Module):
    """Attention whose logits lie near `level` in chosen batches, with a mask that hides nothing."""

    def __init__(self, dim: int = 64) -> None:
        super().__init__()
        self.value = nn.Linear(dim, dim)
        self.query = nn.Linear(dim, dim)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        x = batch["x"]
        q, k, v = (each.to(torch.bfloat16) for each in (self.query(x) * 0.01, x * 0.01, self.value(x)))
        x = x.to(torch.bfloat16)
        level = batch["level"].view(-1, 1).to(x.dtype)
        q = torch.cat([torch.ones_like(q[..., :1]), q[..., 1:]], -1)[:, None]
        k = torch.cat([(level * math.sqrt(x.shape[-1])).expand(x.shape[0], x.shape[1])[..., None], k[..., 1:]], -1)[
            :, None
        ]
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril()
        return F.scaled_dot_product_attention(q, k, v[:, None], attn_mask=mask)


def run(length: int) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    torch.manual_seed(0)
    model = Attention().cuda()
    random = torch.Generator().manual_seed(1)
    batches = [
        {"x": torch.randn(2, length, 64, generator=random).cuda(), "level": torch.zeros(2).cuda()} for _ in range(6)
    ]
    batches[3]["level"][1] = -120.0  # every logsumexp of this row is below ln(FLT_MAX)
    before = {switch.name: switch.read() for switch in SWITCHES}
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with sg.Guard(model, optimizer, lambda m, b: m(b).float().pow(2).mean()) as guard:
        for batch in batches:
            guard.step(batch)
    return guard, before, {switch.name: switch.read() for switch in SWITCHES}


def test_a_wrong_attention_backward_gets_its_cause_and_another_backend() -> None:
    guard, before, after = run(704)
    assert before == after
    refused = [incident for incident in guard.incidents if incident.symptom != "silent"]
    if not refused:
        pytest.skip("this version of cuDNN computes the gradient right")
    diagnosis = refused[0].diagnosis
    assert diagnosis.cause.slug == "library_bug"
    verified = {trial.remedy.slug: trial.remedy.code_change for trial in diagnosis.trials if trial.verified}
    assert verified["attention_backend"] == "torch.backends.cuda.enable_cudnn_sdp(False)"
    assert "pad_length" in verified


def test_a_length_that_fills_the_tiles_is_healthy() -> None:
    guard, before, after = run(768)
    assert not guard.incidents
    assert before == after


class Variance(nn.Module):
    """E[x^2] - E[x]^2 of a constant row: exactly zero in eager, below zero where it is contracted."""

    def forward(self, h: Tensor) -> Tensor:
        mean = h.mean(1)
        return torch.sqrt((h * h).mean(1) - mean * mean + 1e-5)


def diagnosis_of_a_variance(compiled: str) -> Any:
    """The diagnosis where this submodule is compiled ("": the whole model); row 2 of batch 3 has a variance below 0."""
    model = nn.Sequential(Variance(), nn.Linear(32, 2)).cuda()
    model.get_submodule(compiled).compile(dynamic=False)
    random = torch.Generator().manual_seed(6)
    batches = [(-40 + 20 * torch.randn(6, 16, 32, generator=random)).cuda() for _ in range(6)]
    levels = (torch.tensor(-83.0 - k * 0.013) for k in range(1000))
    batches[3][2] = next(float(c) for c in levels if float((c * c).double() - c.double() ** 2) < -2e-4)
    with sg.Guard(model, torch.optim.SGD(model.parameters(), lr=1e-7), lambda m, b: m(b).pow(2).mean()) as guard:
        for batch in batches:
            guard.step(batch)
    if not guard.incidents:
        pytest.skip("this compiler does not contract the difference")
    return guard.incidents[0].diagnosis


def test_a_compiled_variance_is_tried_in_eager() -> None:
    diagnosis = diagnosis_of_a_variance(compiled="0")
    assert diagnosis.cause.slug == "compiler_numerics"
    assert "eager" in {trial.remedy.slug for trial in diagnosis.trials if trial.verified}


def test_products_in_tf32_are_tried_in_float32() -> None:
    class Segments(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("avg", torch.eye(64).repeat_interleave(4, 1) / 4)

        def forward(self, x: Tensor) -> Tensor:
            m1, m2 = torch.matmul(self.avg, x), torch.matmul(self.avg, x * x)
            return torch.sqrt(m2 - m1 * m1 + 1e-4)

    torch.manual_seed(0)
    model = nn.Sequential(Segments(), nn.Linear(64, 3)).cuda()
    wave = torch.tensor([1.0, -1.0]).repeat(128)[:, None]
    random = torch.Generator().manual_seed(13)
    batches = [(2 + wave * (1 + 0.3 * torch.rand(8, 256, 64, generator=random))).cuda() for _ in range(6)]
    batches[3][4, 64:96] = batches[3][4, 63]
    torch.set_float32_matmul_precision("high")
    try:
        with sg.Guard(model, torch.optim.SGD(model.parameters(), lr=1e-3), lambda m, b: m(b).pow(2).mean()) as guard:
            for batch in batches:
                guard.step(batch)
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision("highest")
    verified = {trial.remedy.slug for trial in guard.incidents[0].diagnosis.trials if trial.verified}
    assert "fp32_matmul" in verified


def test_the_op_of_a_compiled_variance_is_located() -> None:
    diagnosis = diagnosis_of_a_variance(compiled="")
    assert (diagnosis.origin.op, diagnosis.origin.module, diagnosis.rows) == ("sqrt", "0", (2,))


@pytest.mark.filterwarnings("ignore:The AccumulateGrad node")
@pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS")
def test_rows_left_in_the_input_of_a_captured_graph_are_the_cause() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1)).cuda()
    static, weights = torch.zeros(8, 16, device="cuda"), torch.ones(8, device="cuda")
    captured = torch.cuda.make_graphed_callables(model, (static,))

    def loss_fn(module: nn.Module, batch: Tensor) -> Tensor:
        n = len(batch)
        static[:n].copy_(batch)
        weights.zero_()
        weights[:n] = 1.0
        if not torch.isfinite(static[:n]).all():
            return sum(p.sum() for p in module.parameters()) * 0.0  # type: ignore[return-value]
        return (captured(static).pow(2).mean(1) * weights).sum() / weights.sum()

    batches = [torch.randn(8, 16, device="cuda") for _ in range(6)]
    batches[2][7] = float("nan")
    batches[3] = batches[3][:6].clone()
    with sg.Guard(model, torch.optim.SGD(model.parameters(), lr=1e-3), loss_fn) as guard:
        for batch in batches[:4]:
            guard.step(batch)
    assert static[7].isnan().all()
    diagnosis = guard.incidents[0].diagnosis
    assert (diagnosis.cause.slug, diagnosis.phase) == ("poisoned_state", "state")
    assert "zero_tail" in {trial.remedy.slug for trial in diagnosis.trials if trial.verified}


def test_a_pinned_buffer_that_is_written_while_its_copy_is_queued_is_a_race() -> None:
    model = nn.Linear(1024, 16).cuda()
    staging = torch.zeros(4096, 1024).pin_memory()
    work = torch.randn(4096, 4096, device="cuda")

    def loss_fn(module: nn.Module, batch: dict[str, Any]) -> Tensor:
        staging.copy_(batch["x"])
        for _ in range(20):
            work.matmul(work)  # the device is busy, so the copy waits
        x = staging.to("cuda", non_blocking=True)
        if batch["early"]:
            staging.fill_(float("nan"))
        return module(x).pow(2).mean()

    batches = [{"x": torch.randn(4096, 1024), "early": step == 3} for step in range(6)]
    with sg.Guard(model, torch.optim.SGD(model.parameters(), lr=1e-3), loss_fn) as guard:
        for batch in batches:
            guard.step(batch)
    assert guard.incidents
    diagnosis = guard.incidents[0].diagnosis
    assert diagnosis.cause is None or diagnosis.cause.slug == "async_race", diagnosis.because
    assert diagnosis.cause is not None, diagnosis.because


def test_cudnn_attention_is_warned_of_before_the_first_step(caplog: pytest.LogCaptureFixture) -> None:
    model = Attention().to("cuda", torch.bfloat16)
    with sg.Guard(model, torch.optim.SGD(model.parameters(), lr=1e-3), lambda m, b: m(b).float().mean()):
        wrong = torch.cuda.get_device_capability()[0] == 9 and torch.__version__ >= "2.11"
        assert ("PF601" in caplog.text) is wrong


def test_a_result_that_is_read_before_another_stream_has_computed_it_is_a_race() -> None:
    model, side = nn.Linear(8, 1).cuda(), torch.cuda.Stream()

    def loss_fn(module: nn.Module, batch: dict[str, Any]) -> Tensor:
        halves = torch.full_like(batch["x"], float("nan"))
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            if batch["late"]:
                torch.cuda._sleep(400_000_000)
            halves.copy_(batch["x"] / 2)
        if not batch["late"]:
            torch.cuda.current_stream().wait_stream(side)
        return module(halves + 0.0).pow(2).mean()

    batches = [{"x": torch.randn(6, 8, device="cuda"), "late": step == 3} for step in range(6)]
    with sg.Guard(model, torch.optim.SGD(model.parameters(), lr=1e-3), loss_fn) as guard:
        for batch in batches:
            guard.step(batch)
    diagnosis = guard.incidents[0].diagnosis
    assert diagnosis.cause is not None, diagnosis.because
    assert diagnosis.cause.slug == "async_race", diagnosis.because
    assert diagnosis.origin.code_line == "return module(halves + 0.0).pow(2).mean()"
    assert "wait_for_stream" in {trial.remedy.slug for trial in diagnosis.trials if trial.verified}


def test_remedies_are_tried_for_a_language_model_and_for_batch_norm() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(16, 8), nn.Flatten(), nn.Linear(48, 32), nn.BatchNorm1d(32), nn.Linear(32, 80))
    model.cuda()

    def loss_fn(module: nn.Module, ids: Tensor) -> Tensor:
        share = module(ids).view(-1, 5, 16).softmax(-1)
        kept = (ids[:, 1:].flatten() != 0).float()
        picked = share.flatten(0, 1).gather(1, ids[:, 1:].flatten()[:, None])[:, 0]
        return -(picked.log() * kept).sum() / kept.sum()

    batches = [torch.randint(1, 16, (4, 6), device="cuda") for _ in range(6)]
    batches[3] = torch.zeros_like(batches[3])  # no token counts: 0 / 0
    with sg.Guard(model, torch.optim.AdamW(model.parameters(), lr=1e-3), loss_fn) as guard:
        for batch in batches:
            guard.step(batch)
    diagnosis = guard.incidents[0].diagnosis
    assert diagnosis.cause.slug in ("zero_division", "empty_reduction"), diagnosis.because
    assert not [trial.verdict for trial in diagnosis.trials if "NotChecked" in trial.verdict]
    assert {"eps", "guard", "clamp"} & {trial.remedy.slug for trial in diagnosis.trials if trial.verified}

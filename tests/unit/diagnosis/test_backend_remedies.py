"""A kernel that is wrong is proved by another one, and the other one is offered; every switch is as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from steadygrad.diagnosis.diagnose import diagnose
from steadygrad.diagnosis.interventions.backend.attention import (
    EagerAttention,
    additive_mask,
    backend_of,
    only_backend,
    padded_attention,
    without_backend,
)
from steadygrad.diagnosis.interventions.backend.flags import (
    CUDNN_BENCHMARK,
    FLOAT32,
    FP16_ACCUMULATION,
    SWITCHES,
    BackendFlags,
    full_float32,
    reduced_float32,
)

MakeReplayable = Callable[..., Any]
BAD = {"flash": False, "library": False, "mystery": False, "update": False}
"""Which of the kernels below are wrong in this test."""


@torch.library.custom_op("sgtest::flash_attention", mutates_args=())
def flash_attention(x: Tensor) -> Tensor:
    """A fused attention that is wrong while its backend is allowed."""
    return x * (float("nan") if BAD["flash"] and torch.backends.cuda.flash_sdp_enabled() else 1.0)


@torch.library.custom_op("sgtest::convolution", mutates_args=())
def convolution(x: Tensor) -> Tensor:
    """A convolution whose library is wrong in float32."""
    wrong = BAD["library"] and x.dtype is torch.float32 and torch.backends.mkldnn.enabled
    return x * (float("nan") if wrong else 1.0)


@torch.library.custom_op("sgtest::mystery", mutates_args=())
def mystery(x: Tensor) -> Tensor:
    """An op that fails with the kernel that a benchmark chose."""
    wrong = BAD["mystery"] and torch.backends.cudnn.benchmark and not torch.are_deterministic_algorithms_enabled()
    return x * (float("nan") if wrong else 1.0)


@torch.library.custom_op("sgtest::fused_step", mutates_args={"p"})
def fused_step(p: Tensor, g: Tensor, lr: float) -> None:
    p.copy_(p * float("nan") if BAD["update"] else p - lr * g)


for _op in (flash_attention, convolution, mystery):
    _op.register_autograd(lambda ctx, grad: grad)


class Plain(torch.optim.Optimizer):
    """SGD with a fused form of its own."""

    def __init__(self, parameters: Any, fused: bool) -> None:
        super().__init__(parameters, {"lr": 0.01, "fused": fused})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if group["fused"]:
                    fused_step(p, p.grad, group["lr"])
                else:
                    p.add_(p.grad, alpha=-group["lr"])


@pytest.fixture(autouse=True)
def _kernels_are_right_again() -> Iterator[None]:
    before = everything()
    yield
    BAD.update(dict.fromkeys(BAD, False))
    for switch in SWITCHES:
        switch.write(before[switch.name])


def everything() -> dict[str, Any]:
    return {switch.name: switch.read() for switch in SWITCHES}


def batches(n: int = 8) -> list[Tensor]:
    random = torch.Generator().manual_seed(0)
    return [torch.randn(6, 4, generator=random) for _ in range(n)]


def with_op(op: Any) -> Callable[[nn.Module, Tensor], Tensor]:
    def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
        return op(model(batch)).pow(2).mean()

    return loss_fn


def verified(diagnosis: Any) -> dict[str, str | None]:
    return {t.remedy.slug: t.remedy.code_change for t in diagnosis.trials if t.verified}


def diagnosed(replayable: Any) -> Any:
    """A diagnosis that leaves switches and random numbers as they were."""
    before, random = everything(), torch.get_rng_state()
    diagnosis = diagnose(replayable)
    assert everything() == before
    assert torch.equal(torch.get_rng_state(), random)
    return diagnosis


def test_a_wrong_attention_kernel_is_proved_and_its_backend_switched_off(make_replayable: MakeReplayable) -> None:
    BAD["flash"] = True
    diagnosis = diagnosed(make_replayable(nn.Linear(4, 4), with_op(flash_attention), batches()))
    assert diagnosis.cause.slug == "library_bug"
    assert verified(diagnosis)["attention_backend"] == "torch.backends.cuda.enable_flash_sdp(False)"
    assert diagnosis.trials[0].verified


def test_a_backend_that_is_right_is_not_called_wrong(make_replayable: MakeReplayable) -> None:
    def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
        return (flash_attention(model(batch)) / 0.0).mean()

    diagnosis = diagnosed(make_replayable(nn.Linear(4, 4), loss_fn, batches()))
    assert diagnosis.cause.slug == "zero_division"
    assert "attention_backend" not in verified(diagnosis)


def test_products_in_tf32_are_tried_in_float32(make_replayable: MakeReplayable) -> None:
    def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
        out = model(batch)
        lost = 2e-3 if torch.get_float32_matmul_precision() != "highest" else 0.0
        return torch.sqrt((out - out) + 1e-3 - lost).mean() + 0 * out.sum()

    torch.set_float32_matmul_precision("high")
    diagnosis = diagnosed(make_replayable(nn.Linear(4, 4), loss_fn, batches()))
    assert torch.get_float32_matmul_precision() == "high"
    assert verified(diagnosis)["fp32_matmul"] == 'torch.set_float32_matmul_precision("highest")'


def test_half_sums_are_tried_in_float32(make_replayable: MakeReplayable) -> None:
    def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
        out = model(batch)
        return (out * (1e38 if torch.backends.cuda.matmul.allow_fp16_accumulation else 1e-3)).pow(2).mean()

    FP16_ACCUMULATION.write(True)
    diagnosis = diagnosed(make_replayable(nn.Linear(4, 4), loss_fn, batches()))
    assert verified(diagnosis)["fp32_accumulation"] == "torch.backends.cuda.matmul.allow_fp16_accumulation = False"


def test_a_kernel_chosen_by_a_benchmark_is_tried_in_its_deterministic_form(make_replayable: MakeReplayable) -> None:
    BAD["mystery"] = True
    CUDNN_BENCHMARK.write(True)
    diagnosis = diagnosed(make_replayable(nn.Linear(4, 4), with_op(mystery), batches()))
    assert verified(diagnosis)["deterministic"] == "torch.use_deterministic_algorithms(True)"


def test_a_wrong_library_is_proved_where_float64_shows_a_small_result(
    make_replayable: MakeReplayable,
) -> None:
    BAD["library"] = True
    diagnosis = diagnosed(make_replayable(nn.Linear(4, 4), with_op(convolution), batches()))
    assert diagnosis.cause.slug == "library_bug"
    assert "native_kernel" in verified(diagnosis)


def test_a_wrong_fused_update_is_proved_and_taken_unfused(make_replayable: MakeReplayable) -> None:
    BAD["update"] = True
    model = nn.Linear(4, 4)
    optimizer = Plain(model.parameters(), fused=True)
    diagnosis = diagnosed(make_replayable(model, with_op(lambda x: x), batches(), optimizer=optimizer))
    assert diagnosis.cause.slug == "library_bug"
    assert "unfused_optimizer" in verified(diagnosis)
    assert optimizer.param_groups[0]["fused"] is True


def test_an_optimizer_that_is_not_fused_gets_no_such_remedy(make_replayable: MakeReplayable) -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=float("nan"))
    diagnosis = diagnosed(make_replayable(model, with_op(lambda x: x), batches(), optimizer=optimizer))
    assert "unfused_optimizer" not in {t.remedy.slug for t in diagnosis.trials}


# -- switches


@pytest.mark.parametrize("switch", SWITCHES, ids=lambda switch: switch.name)
def test_a_switch_is_restored_where_the_step_raises(switch: Any) -> None:
    before = everything()
    other = full_float32() if switch is FLOAT32 else _other(before[switch.name])
    change = BackendFlags((switch, other))

    def step() -> None:
        with change.around():
            assert switch.read() == other or switch.name.endswith("reduction")
            raise RuntimeError("of the user")

    with pytest.raises(RuntimeError, match="of the user"):
        step()
    assert everything() == before


def _other(value: Any) -> Any:
    if isinstance(value, tuple):
        return False if value[0] else (True, *value[1:])
    return not value


@pytest.mark.parametrize("written", ["legacy", "own", "inherited"])
def test_float32_products_are_restored_however_the_program_had_set_them(written: str) -> None:
    before = everything()
    try:
        if written == "legacy":
            torch.set_float32_matmul_precision("medium")
        elif written == "own":
            torch.backends.cuda.matmul.fp32_precision = "tf32"
        else:
            torch.backends.fp32_precision = "tf32"
        now = everything()[FLOAT32.name]
        assert reduced_float32()
        with BackendFlags((FLOAT32, full_float32())).around():
            assert not reduced_float32()
        assert reduced_float32()
        assert everything()[FLOAT32.name] == now
        convolutions = torch.backends.cudnn.conv.fp32_precision  # type: ignore[attr-defined]
        with BackendFlags((FLOAT32, full_float32(convolutions=True))).around():
            assert not reduced_float32(convolutions=True)
        assert everything()[FLOAT32.name] == now
        assert torch.backends.cudnn.conv.fp32_precision == convolutions  # type: ignore[attr-defined]
        if written == "inherited":  # it still follows its parent
            torch.backends.fp32_precision = "ieee"
            assert not reduced_float32()
    finally:
        torch.backends.fp32_precision = "none"
        torch.backends.cuda.matmul.fp32_precision = "none"
        FLOAT32.write(before[FLOAT32.name])


# -- attention at another length, with another mask


@pytest.mark.parametrize("kind", ["none", "causal", "boolean", "additive"])
def test_padded_attention_computes_the_same(kind: str) -> None:
    random = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(2, 3, 70, 8, generator=random, dtype=torch.float64, requires_grad=True) for _ in range(3))
    mask = torch.rand(70, 70, generator=random) > 0.4
    mask.fill_diagonal_(True)
    masks = {
        "none": {},
        "causal": {"is_causal": True},
        "boolean": {"attn_mask": mask},
        "additive": {"attn_mask": torch.zeros(70, 70, dtype=torch.float64).masked_fill(~mask, -1e9)},
    }
    plain = F.scaled_dot_product_attention(q, k, v, **masks[kind])
    padded = padded_attention(F.scaled_dot_product_attention, (q, k, v), dict(masks[kind]))
    assert torch.allclose(plain, padded)
    expected = torch.autograd.grad(plain.pow(2).sum(), (q, k, v))
    found = torch.autograd.grad(padded.pow(2).sum(), (q, k, v))
    assert all(torch.allclose(a, b) for a, b in zip(expected, found, strict=True))


def test_a_mask_of_numbers_means_what_the_booleans_meant() -> None:
    q, k, v = (torch.randn(1, 2, 5, 4, generator=torch.Generator().manual_seed(i)) for i in range(3))
    mask = torch.ones(5, 5, dtype=torch.bool).tril()
    plain = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    assert torch.allclose(plain, additive_mask(F.scaled_dot_product_attention, (q, k, v, mask), {}), atol=1e-6)
    assert torch.allclose(plain, additive_mask(F.scaled_dot_product_attention, (q, k, v), {"is_causal": True}))
    with pytest.raises(ValueError, match="no mask"):
        additive_mask(F.scaled_dot_product_attention, (q, k, v), {})


def test_attention_without_a_backend_is_computed_by_another_one() -> None:
    q = torch.randn(1, 2, 16, 8, generator=torch.Generator().manual_seed(0))

    def ops() -> set[str]:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            F.scaled_dot_product_attention(q, q, q)
        return {event.key for event in profile.key_averages() if "attention" in event.key}

    fused = "aten::_scaled_dot_product_flash_attention_for_cpu"
    assert backend_of(fused) == "flash"
    assert fused in ops()
    with without_backend("flash").around():
        assert fused not in ops()
    with only_backend("math").around():
        assert "aten::_scaled_dot_product_attention_math" in ops()
    assert fused in ops()


def test_the_attention_of_a_transformers_model_is_written_out_and_restored() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, vocab_size=32
    )
    model = transformers.LlamaForCausalLM(config)
    ids = torch.arange(8)[None]
    fused = model(ids).logits
    assert model.config._attn_implementation == "sdpa"
    change, replayable = EagerAttention(), SimpleNamespace(model=model)
    change.prepared(replayable)  # type: ignore[arg-type]
    assert model.config._attn_implementation == "eager"
    assert torch.allclose(model(ids).logits, fused, atol=1e-5)
    change.undo(replayable)  # type: ignore[arg-type]
    assert model.config._attn_implementation == "sdpa"
    assert torch.equal(model(ids).logits, fused)

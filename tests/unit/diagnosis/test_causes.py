"""Every cause has a specimen that must match and near misses that must not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from steadygrad.diagnosis.causes import judges, name_cause
from steadygrad.diagnosis.causes.evidence import Evidence, OpFacts, StateChange
from steadygrad.records import TensorDigest
from steadygrad.records.rules import HEADINGS, pages

FINITE = (TensorDigest(shape=(4,), dtype="float32", absmax=3.0),)
HALF = (TensorDigest(shape=(4,), dtype="float16", absmax=300.0),)


def op(name: str, **changes: object) -> Evidence:
    base = Evidence(symptom="nan_loss", phase="loss", op=name, dtype="float32", inputs=FINITE)
    return replace(base, **changes)  # type: ignore[arg-type]


def first_bad_in_backward(name: str, **changes: object) -> Evidence:
    return op(name, symptom="nan_grad", phase="backward", backward=True, **changes)


FLIP = StateChange(
    kind="parameter", name="w", num_changed=1, num_elements=64, absmax_before=1.0, absmax_after=1e38, out_of_range=True
)

SPECIMENS: dict[str, Evidence] = {
    "fp16_overflow": op(
        "bmm",
        dtype="float16",
        inputs=HALF,
        facts=OpFacts(float32_finite=True, float64_finite=True, float64_absmax=155324.0),
    ),
    "fp16_underflow": op(
        "div", dtype="float16", inputs=HALF, facts=OpFacts(denominator_zero=True), tiny_scalar_in_half=True
    ),
    "optimizer_eps_underflow": op(
        "addcdiv", phase="optimizer", stage="commit", dtype="float16", facts=OpFacts(denominator_zero=True)
    ),
    "lost_update": Evidence(symptom="silent", kind="unmoved", phase="optimizer", names=("w",), rate=1e-5),
    "scaler_misuse": Evidence(symptom="silent", kind="mis_sized", phase="optimizer", entering_ratio=1 / 65536),
    "zero_division": op("div", facts=OpFacts(denominator_zero=True)),
    "empty_reduction": op("mean", facts=OpFacts(num_reduced=0)),
    "log_zero": op("log", is_nan=False, facts=OpFacts(argument_zero=True)),
    "exp_overflow": op("exp", is_nan=False, inputs=(TensorDigest(dtype="float32", absmax=200.0),)),
    "cancellation": op("sqrt", facts=OpFacts(argument_negative=True), cancelled=True),
    "masked_softmax_row": op("softmax", phase="forward", facts=OpFacts(masked_row=True)),
    "sqrt_grad_at_zero": first_bad_in_backward("sqrt", facts=OpFacts(argument_zero=True)),
    "domain_edge_grad": first_bad_in_backward("acos", facts=OpFacts(argument_at_edge=True)),
    "where_grad_trap": first_bad_in_backward("log", facts=OpFacts(incoming_zero=True, zeroed_by_mask=True)),
    "bad_input": Evidence(symptom="nan_loss", phase="data", leaf=("batch", "x")),
    "uninitialised": Evidence(symptom="nan_loss", phase="state", leaf=("parameter", "w"), bad_since_start=True),
    "poisoned_state": Evidence(symptom="nan_param", phase="state", leaf=("optimizer", "w/exp_avg_sq"), step=6),
    "transient_fault": Evidence(symptom="nan_loss", phase="state", leaf=("parameter", "w"), changes=(FLIP,), step=7),
    "lr_divergence": Evidence(symptom="spike", kind="spike", phase="optimizer", rate=1.0, earlier_rate=0.1),
    "stale_momentum": Evidence(symptom="silent", kind="neutralised", phase="optimizer", names=("w",)),
    "no_trainable_grad": Evidence(symptom="silent", kind="zero_gradient", phase="backward", gradient_in_float32=False),
    "library_bug": op("scaled_dot_product_flash_attention", plain_backend_finite=True),
    "compiler_numerics": Evidence(symptom="nan_loss", compiled=True, reproduced=(0, 3)),
    "async_race": Evidence(symptom="nan_loss", proved_by="wait_for_copy"),
    "fp8_overflow": op("to_copy", dtype="float8_e4m3fn", outputs=(TensorDigest(dtype="float8_e4m3fn", num_nan=1),)),
}

NEAR_MISSES: dict[str, Evidence] = {
    "fp16_overflow": op("bmm", dtype="float32", facts=OpFacts(float32_finite=True)),
    "fp16_underflow": op("div", dtype="float32", facts=OpFacts(denominator_zero=True)),
    "optimizer_eps_underflow": op("div", phase="loss", facts=OpFacts(denominator_zero=True)),
    "lost_update": Evidence(symptom="silent", kind="zero_gradient"),
    "scaler_misuse": first_bad_in_backward(
        "to_copy", dtype="float16", loss_scale=1024.0, dynamic_scale=False, unit_scale_finite=False
    ),
    "zero_division": op("div", facts=OpFacts(denominator_zero=False)),
    "empty_reduction": op("mean", facts=OpFacts(num_reduced=12)),
    "log_zero": first_bad_in_backward("log", facts=OpFacts(argument_zero=True)),
    "exp_overflow": op("exp", inputs=(TensorDigest(dtype="float32", num_inf=2),)),
    "cancellation": op("sqrt", facts=OpFacts(argument_negative=False), cancelled=True),
    "masked_softmax_row": op("softmax", facts=OpFacts(masked_row=False)),
    "sqrt_grad_at_zero": op("sqrt", facts=OpFacts(argument_zero=True)),
    "domain_edge_grad": first_bad_in_backward("mul"),
    "where_grad_trap": first_bad_in_backward("log", facts=OpFacts(incoming_zero=True, zeroed_by_mask=False)),
    "bad_input": Evidence(symptom="nan_loss", phase="state", leaf=("buffer", "x")),
    "uninitialised": Evidence(symptom="nan_loss", phase="state", leaf=("parameter", "w"), bad_since_start=False),
    "poisoned_state": Evidence(symptom="nan_loss", phase="data", leaf=("batch", "x")),
    "transient_fault": Evidence(symptom="nan_loss", phase="state", changes=(replace(FLIP, out_of_range=False),)),
    "lr_divergence": op("exp", losses=(1.0, 0.9, 0.8), blew_up=False),
    "stale_momentum": Evidence(symptom="nan_loss", phase="loss"),
    "no_trainable_grad": Evidence(symptom="silent", kind="zero_gradient", gradient_in_float32=True),
    "library_bug": op("bmm", plain_backend_finite=None),
    "compiler_numerics": Evidence(symptom="nan_loss", compiled=True, reproduced=(3, 3)),
    "async_race": Evidence(symptom="nan_loss", proved_by="zero_tail"),
    "fp8_overflow": op("to_copy", dtype="float16"),
}

SLUGS = sorted(judge.RULE.slug for judge in judges())


def test_every_cause_has_a_specimen_and_a_near_miss() -> None:
    assert sorted(SPECIMENS) == SLUGS
    assert sorted(NEAR_MISSES) == SLUGS


@pytest.mark.parametrize("slug", SLUGS)
def test_the_specimen_is_named(slug: str) -> None:
    cause, match, _ = name_cause(SPECIMENS[slug])
    assert cause is not None
    assert cause.slug == slug
    assert match is not None
    assert match.because


@pytest.mark.parametrize("slug", SLUGS)
def test_the_near_miss_is_not(slug: str) -> None:
    judge = next(judge for judge in judges() if judge.RULE.slug == slug)
    assert judge.match(NEAR_MISSES[slug]) is None


@pytest.mark.parametrize(("dtype", "slug"), [("float16", "optimizer_eps_underflow"), ("float32", "zero_division")])
def test_only_float16_can_lose_an_optimizers_eps(dtype: str, slug: str) -> None:
    divided = op("div", phase="optimizer", stage="commit", dtype=dtype, facts=OpFacts(denominator_zero=True))
    cause, _, _ = name_cause(divided)
    assert cause is not None
    assert cause.slug == slug


def test_evidence_that_fits_nothing_gets_no_name() -> None:
    cause, match, _ = name_cause(op("cumsum"))
    assert cause is None
    assert match is None


@pytest.mark.parametrize("code", [page.code for page in pages() if page.code[:2] in ("DX", "RX")])
def test_every_page_has_all_its_sections(code: str) -> None:
    page = next(page for page in pages() if page.code == code)
    assert [heading for heading in HEADINGS if not page.sections.get(heading, "").strip()] == []

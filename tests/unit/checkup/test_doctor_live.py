"""The doctor over live objects: real models, optimizers and arguments, and the glance a guard takes at its start."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import steadygrad as sg
from steadygrad.checkup.live_objects import glance, measure
from steadygrad.checkup.rules.precision.pf106_update_below_half_ulp import half_ulp
from steadygrad.records import Finding, Severity
from steadygrad.records.errors import UsageError


class Tagger(nn.Module):
    """An embedding, a body and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.body = nn.Linear(16, 16)
        self.head = nn.Linear(16, 50)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.body(self.embedding(ids))))  # type: ignore[no-any-return]


def codes(checkup: Any) -> list[str]:
    return [advice.code for advice in checkup.advice]


def test_a_healthy_setup_has_nothing_to_hear() -> None:
    model = Tagger()
    assert sg.doctor(model, torch.optim.AdamW(model.parameters(), lr=1e-3)).advice == ()


def test_float16_weights_and_their_vanishing_epsilon_are_both_named() -> None:
    model = Tagger().half()
    found = sg.doctor(model, torch.optim.Adam(model.parameters(), lr=1e-3, eps=1e-8))
    assert codes(found) == ["PF101", "PF105"]
    assert "100% of what is trained" in found.advice[0].detail
    assert "eps=1e-08 is 0 in float16" in found.advice[1].detail
    assert torch.tensor(1e-8, dtype=torch.float16).item() == 0.0  # what the rule claims


def test_the_claim_about_lost_updates_holds_in_torch_itself() -> None:
    for magnitude in (0.02, 0.5, 3.0):
        weight = torch.tensor(magnitude, dtype=torch.bfloat16)
        limit = half_ulp(weight.item())
        assert (weight + 0.9 * limit).item() == weight.item()
        assert (weight + 1.2 * limit).item() != weight.item()


@pytest.mark.parametrize(("rate", "expected"), [(1e-6, ["PF106"]), (1e-2, [])])
def test_lost_updates_are_judged_by_the_real_magnitude_of_the_weights(rate: float, expected: list[str]) -> None:
    torch.manual_seed(0)
    model = Tagger().bfloat16()
    assert codes(sg.doctor(model, torch.optim.AdamW(model.parameters(), lr=rate))) == expected


def test_weights_near_zero_do_move_and_are_not_reported() -> None:
    model = nn.Linear(64, 64, bias=False).bfloat16()
    nn.init.constant_(model.weight, 1e-5)
    assert codes(sg.doctor(model, torch.optim.AdamW(model.parameters(), lr=1e-6))) == []


def test_a_layer_replaced_after_the_optimizer_was_made_is_named() -> None:
    model = Tagger()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model.head = nn.Linear(16, 50)
    found = sg.doctor(model, optimizer)
    assert codes(found) == ["PF210"]
    assert found.advice[0].subject == "head.weight, head.bias"


def test_a_frozen_model_and_a_poisoned_weight_are_errors() -> None:
    model = Tagger().requires_grad_(False)
    assert codes(sg.doctor(model)) == ["PF211"]
    model = Tagger()
    with torch.no_grad():
        model.body.bias[3] = math.nan
        model.head.weight[0, 0] = math.inf
    found = sg.doctor(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert codes(found) == ["PF409"]
    assert found.advice[0].subject == "body.bias, head.weight"


def test_arguments_are_judged_with_the_model_they_are_for() -> None:
    model = Tagger()
    model.config = SimpleNamespace(model_type="gemma2", max_position_embeddings=64)  # type: ignore[assignment]
    args = {"fp16": True, "bf16": False, "output_dir": "x", "learning_rate": 0.02, "warmup_steps": 10}
    found = codes(sg.doctor(model, torch.optim.AdamW(model.parameters(), lr=1e-4), args=args))
    assert "PF104" in found
    assert "PF301" in found
    assert "PF101" not in found


def test_real_training_arguments_are_read_field_by_field(tmp_path: Any) -> None:
    transformers = pytest.importorskip("transformers")
    args = transformers.TrainingArguments(
        output_dir=str(tmp_path), max_grad_norm=0.0, save_strategy="no", use_cpu=True, report_to=[]
    )
    found = codes(sg.doctor(args=args))
    assert {"PF204", "PF301", "PF304"} <= set(found)


def test_reentrant_checkpointing_over_a_frozen_embedding_is_an_error_until_inputs_require_grad() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, vocab_size=32
    )
    model = transformers.LlamaForCausalLM(config)
    model.get_input_embeddings().requires_grad_(False)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
    setup = measure(model)
    assert (setup.checkpointing, setup.reentrant, setup.embedding_trainable) == (True, True, False)
    assert setup.inputs_require_grad is True  # transformers 5 enables them by itself
    model.disable_input_require_grads()
    assert "PF303" in codes(sg.doctor(model))


# -- the glance


def test_a_glance_gives_findings_a_guard_can_journal() -> None:
    model = Tagger().half()
    found = glance(model, torch.optim.Adam(model.parameters(), lr=1e-3))
    assert all(isinstance(each, Finding) for each in found)
    assert [each.code for each in found] == ["PF101", "PF105"]
    assert {each.severity for each in found} == {Severity.WARNING}
    assert found[0].evidence["level"] == "error"
    assert found[0].evidence["help"]
    assert [each.code for each in glance(model, None, ignore=["PF101"])] == []


def test_a_glance_reads_no_value_of_any_tensor() -> None:
    model = Tagger().to("meta")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    assert glance(model, optimizer) == ()


def test_a_glance_reads_no_learning_rate_that_lives_on_a_device() -> None:
    model = Tagger()
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(1e-3), foreach=False, capturable=False)
    assert measure(model, optimizer).groups[0].lr == pytest.approx(1e-3)
    optimizer.param_groups[0]["lr"] = torch.empty((), device="meta")
    assert measure(model, optimizer).groups[0].lr is None


def test_the_doctor_leaves_weights_and_random_numbers_alone() -> None:
    model = Tagger()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    before, rng = [p.clone() for p in model.parameters()], torch.get_rng_state()
    sg.doctor(model, optimizer)
    glance(model, optimizer)
    assert torch.equal(torch.get_rng_state(), rng)
    assert all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    assert all(p.grad is None for p in model.parameters())


def test_what_is_neither_path_nor_model_is_refused_in_words() -> None:
    with pytest.raises(UsageError, match="needs something to look at"):
        sg.doctor()
    with pytest.raises(UsageError, match=r"takes a path or a torch\.nn\.Module, not a int"):
        sg.doctor(3)
    with pytest.raises(UsageError, match=r"needs a torch\.optim\.Optimizer"):
        sg.doctor(Tagger(), "adam")


def test_silent_errors_of_model_and_optimizer_are_advised_on() -> None:
    layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(12))
    for index in (1, 10, 11):
        layers[index].requires_grad_(False)
    model = torch.nn.ModuleDict({"layers": layers, "norm": torch.nn.LayerNorm(4)})
    trained = [p for p in model.parameters() if p.requires_grad]
    found = sg.doctor(model, torch.optim.AdamW(trained, lr=1e-2, weight_decay=5.0), show=False)
    assert {"SY445", "SY447"} <= {advice.code for advice in found.advice}
    assert all(advice.help for advice in found.advice if advice.code.startswith("SY"))
    healthy = sg.doctor(model.requires_grad_(True), torch.optim.AdamW(model.parameters(), lr=1e-3), show=False)
    assert not any(advice.code.startswith("SY") for advice in healthy.advice)

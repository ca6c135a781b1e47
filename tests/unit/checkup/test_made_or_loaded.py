"""A model made from a configuration may have any learning rate; one that was loaded may not."""

from __future__ import annotations

from pathlib import Path

import torch

import steadygrad as sg


def codes_for(model: torch.nn.Module) -> list[str]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    return [advice.code for advice in sg.doctor(model, optimizer).advice]


def test_a_rate_is_too_high_for_a_model_that_was_loaded_and_not_for_the_same_one_when_made(tmp_path: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    made = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=32,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=2,
        )
    )
    assert "PF209" not in codes_for(made)
    made.save_pretrained(tmp_path / "model")
    assert "PF209" in codes_for(LlamaForCausalLM.from_pretrained(tmp_path / "model"))

"""The set-up of sft.py for `steady selftest`: float16 weights, AdamW with its usual epsilon."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM


def make(dtype: torch.dtype = torch.float16) -> tuple:
    """A model in half precision, its optimizer, the loss, and batches."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=64, num_key_value_heads=2, **sizes)).to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4, foreach=False)
    batches = list(torch.randint(0, 32, (24, 8)).split(4))
    return model, optimizer, lambda model, ids: model(input_ids=ids, labels=ids).loss, batches


def repaired() -> tuple:
    """The same, with float32 weights."""
    return make(torch.float32)

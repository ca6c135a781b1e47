"""The text toy: a Llama of a hundred thousand parameters that starts from nothing and learns to say digits.

Its vocabulary is the 256 bytes and four special tokens, its reward the share of digits in what it says. At random that
is 10 of 260. Thirty steps of GRPO on one CPU core are enough, so it is what everything else here is tried out on.
"""

from __future__ import annotations

from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SPECIAL = ("<pad>", "<bos>", "<eos>", "<unk>")
PROMPTS = ("count: ", "number? ", "how many: ", "digits: ")


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token for every byte, after the four special ones."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate([*SPECIAL, *letters])}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>", unk_token="<unk>",
        padding_side="left",
    )  # fmt: skip


def tiny_llama(seed: int, *, dtype: torch.dtype = torch.float32, layers: int = 2, width: int = 64) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=len(SPECIAL) + 256, hidden_size=width, intermediate_size=2 * width, num_hidden_layers=layers,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128, tie_word_embeddings=False,
        pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return LlamaForCausalLM(config).to(dtype)


def prompts(count: int = 256) -> Dataset:
    return Dataset.from_dict({"prompt": [PROMPTS[number % len(PROMPTS)] for number in range(count)]})


def share_of_digits(completions: list[str], **_: Any) -> list[float]:
    """The reward: how much of what was said is a digit."""
    return [sum(letter in "0123456789" for letter in text) / max(1, len(text)) for text in completions]

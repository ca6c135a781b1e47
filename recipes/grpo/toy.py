"""The text toy: a Llama of a hundred thousand parameters that starts from nothing and learns to say digits.

Its vocabulary is the 256 bytes and four special tokens, its reward the share of digits in what it says. At random that
is 10 of 260. Thirty steps of GRPO on one CPU core are enough, so it is what everything else here is tried out on.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from steadygrad import UsageError

from .settings import Settings, prepared
from .trainer import StableGRPOTrainer
from .training import config_for, mean, run, sampled, written

SPECIAL = ("<pad>", "<bos>", "<eos>")
PROMPTS = ("count: ", "number? ", "how many: ", "digits: ")
SETTINGS = Settings(steps=30, batch_size=32, group=8, max_tokens=12, learning_rate=5e-3, save_every=10)


def train(settings: Settings, out: Path, *, resume: bool = False, show: bool = True) -> dict[str, Any]:
    """Reward from about 0.04 to above 0.6 in thirty steps; the model lies in `out/model` afterwards."""
    checkpoint = prepared(out, settings.check(), resume=resume)
    arguments = config_for(settings, out, disable_tqdm=not show)
    with StableGRPOTrainer(
        tiny_llama(settings.seed), share_of_digits, arguments, train_dataset=prompts(),
        processing_class=byte_tokenizer(), run_dir=out / "run", clip_value=settings.clip_value,
    ) as trainer:  # fmt: skip
        told = run(trainer, out, checkpoint=checkpoint)
        trainer.model.save_pretrained(out / "model")
    return written(out, {"task": "toy", **told})


def evaluate(settings: Settings, out: Path) -> dict[str, Any]:
    """The reward of 64 completions sampled from the trained model, beside those of the model it began as."""
    if not (out / "model" / "config.json").is_file():
        raise UsageError(f"There is no trained model in {out}: run train --task toy first.")
    trained = LlamaForCausalLM.from_pretrained(out / "model", dtype=torch.float32)
    told: dict[str, Any] = {"task": "toy"}
    for name, model in (("before", tiny_llama(settings.seed)), ("after", trained)):
        said = sampled(model, byte_tokenizer(), list(PROMPTS) * 16, max_tokens=settings.max_tokens, seed=settings.seed)
        told[name] = mean(share_of_digits(said))
        print(f"{name:<7} reward {told[name]:.3f}   such as {said[0]!r}")
    return told


def byte_tokenizer(*, unknown: str = "<unk>") -> PreTrainedTokenizerFast:
    """One token for every byte, after four special ones. Bytes leave nothing unknown, so that one is free to use."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate([*SPECIAL, unknown, *letters])}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token=unknown))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>", unk_token=unknown,
        padding_side="left",
    )  # fmt: skip


def tiny_llama(seed: int, *, dtype: torch.dtype = torch.float32, layers: int = 2, width: int = 64) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=len(SPECIAL) + 1 + 256, hidden_size=width, intermediate_size=2 * width, num_hidden_layers=layers,
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

"""TRL's GRPOTrainer, guarded by one line.

`python examples/trl_grpo.py [RUN_DIR]`. The reward is the logarithm of a rank, smoothed so that the last answer does
not get log(0); for one prompt the smoothing was forgotten. Its group's mean is -inf and its advantages are infinite,
which the trainer turns into the largest float there is; their sum overflows. Nothing is downloaded.
"""

from __future__ import annotations

import sys
import tempfile
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

import steadygrad as sg

STEPS, GROUP = 8, 4


def tokenizer() -> PreTrainedTokenizerFast:
    words = ["pad", "eos", "unk", *map(str, range(32))]
    inner = Tokenizer(WordLevel({word: place for place, word in enumerate(words)}, unk_token="unk"))
    inner.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="pad", eos_token="eos", unk_token="unk")


def log_of_rank(prompts: list[str], completions: list[str], smoothing: list[float], **_: Any) -> list[float]:
    """An answer is better the more of its numbers are larger than the question; its reward is its rank's logarithm."""
    larger = [
        sum(word.isdigit() and int(word) > int(prompt) for word in completion.split())
        for prompt, completion in zip(prompts, completions, strict=True)
    ]
    rewards = []
    for number, floor in enumerate(smoothing):
        group = range(number - number % GROUP, number - number % GROUP + GROUP)
        beaten = sum((larger[other], other) < (larger[number], number) for other in group)
        rewards.append((beaten + floor) / GROUP)
    return torch.tensor(rewards).log().tolist()


def main(run_dir: str | None = None) -> Any:
    torch.manual_seed(0)
    words = tokenizer()
    ids = {"bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 0}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(words), n_positions=32, n_embd=32, n_layer=2, n_head=2, **ids))
    data = {"prompt": ["3", "8", "1", "4", "5", "12", "9", "2"], "smoothing": [0.5] * STEPS}
    data["smoothing"][3] = 0.0
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=log_of_rank,
            args=GRPOConfig(
                output_dir=folder, max_steps=STEPS, per_device_train_batch_size=GROUP, num_generations=GROUP,
                max_completion_length=6, scale_rewards="none", learning_rate=1e-2, shuffle_dataset=False,
                logging_steps=2, save_strategy="no", report_to="none", disable_tqdm=True, use_cpu=True, bf16=False,
            ),
            train_dataset=Dataset.from_dict(data),
            processing_class=words,
        )  # fmt: skip

        guard = sg.attach(trainer, run_dir=run_dir)  # the one line
        trainer.train()
        guard.close()

    told = guard.summary()
    print(f"{told['steps']} steps, {told['skipped']} refused")
    for incident in guard.incidents:
        origin = incident.diagnosis.origin
        print(f"step {incident.first_step}: {incident.headline}; born in {origin.op}")
        print(f"    {origin.code_line}")
    return guard


if __name__ == "__main__":
    main(*sys.argv[1:2])

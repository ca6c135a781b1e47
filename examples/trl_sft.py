"""TRL's SFTTrainer with LoRA, guarded by one line.

`python examples/trl_sft.py [RUN_DIR]`. The model divides embeddings by their length. A token was added to the
vocabulary and its row left at zero, so the one document that uses it divides by zero. Nothing is downloaded.
"""

from __future__ import annotations

import sys
import tempfile
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

import steadygrad as sg

STEPS, BATCH = 12, 4
UNITS = ["mm", "cm", "m", "km"]
ADDED = "tool"


def tokenizer() -> PreTrainedTokenizerFast:
    words = ["pad", "eos", "unk", ADDED, "is", *UNITS, *map(str, range(100))]
    inner = Tokenizer(WordLevel({word: place for place, word in enumerate(words)}, unk_token="unk"))
    inner.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="pad", eos_token="eos", unk_token="unk")


def texts() -> list[str]:
    generator = torch.Generator().manual_seed(0)
    found = []
    for number in range(STEPS * BATCH):
        amount, unit = torch.randint(10, (2,), generator=generator).tolist()
        found.append(f"{amount} {UNITS[unit % 3 + 1]} is {amount * 10} {UNITS[unit % 3]}")
        if number == 17:
            found[-1] = f"{ADDED} {found[-1]}"
    return found


def model(vocabulary: PreTrainedTokenizerFast) -> GPT2LMHeadModel:
    ids = {"bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 0}
    made = GPT2LMHeadModel(
        GPT2Config(vocab_size=len(vocabulary), n_positions=32, n_embd=32, n_layer=2, n_head=2, **ids)
    )
    with torch.no_grad():
        made.transformer.wte.weight[vocabulary.convert_tokens_to_ids(ADDED)] = 0

    def unit_length(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        return output / output.norm(dim=-1, keepdim=True)

    made.transformer.wte.register_forward_hook(unit_length)
    return made


def main(run_dir: str | None = None) -> Any:
    torch.manual_seed(0)
    words = tokenizer()
    with tempfile.TemporaryDirectory() as folder:
        trainer = SFTTrainer(
            model=model(words),
            args=SFTConfig(
                output_dir=folder, max_steps=STEPS, per_device_train_batch_size=BATCH, learning_rate=1e-2,
                gradient_checkpointing=True, train_sampling_strategy="sequential", logging_steps=4, save_strategy="no",
                report_to="none", disable_tqdm=True, use_cpu=True, bf16=False,
            ),
            train_dataset=Dataset.from_dict({"text": texts()}),
            processing_class=words,
            peft_config=LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True, task_type="CAUSAL_LM"),
        )  # fmt: skip

        guard = sg.attach(trainer, run_dir=run_dir)  # the one line
        trainer.train()
        guard.close()

    told = guard.summary()
    print(f"{told['steps']} steps, {told['skipped']} refused")
    for incident in guard.incidents:
        diagnosis = incident.diagnosis
        print(f"step {incident.first_step}: cause {diagnosis.cause.slug}, rows {diagnosis.rows}")
        print(f"    {diagnosis.origin.code_line}")
    return guard


if __name__ == "__main__":
    main(*sys.argv[1:2])

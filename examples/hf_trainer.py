"""A transformers Trainer, guarded by one line.

`python examples/hf_trainer.py [RUN_DIR]`. In one batch every label is masked, as when the answers were truncated away:
the trainer divides by the number of labels, so the loss is 0 / 0. Nothing is downloaded.
"""

from __future__ import annotations

import sys
import tempfile
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import steadygrad as sg

STEPS, BATCH = 20, 4
MASKED_STEP = 7


def rows() -> list[dict[str, Any]]:
    """Counting modulo 24, from random starts; the labels of one batch are all -100, which means "do not train on"."""
    generator = torch.Generator().manual_seed(0)
    starts = torch.randint(24, (STEPS * BATCH,), generator=generator).tolist()
    found = []
    for number, start in enumerate(starts):
        tokens = [(start + place) % 24 for place in range(16)]
        masked = number // BATCH == MASKED_STEP
        found.append({"input_ids": tokens, "labels": [-100] * 16 if masked else tokens})
    return found


def main(run_dir: str | None = None) -> Any:
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=24, n_positions=16, n_embd=32, n_layer=2, n_head=2))
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder, max_steps=STEPS, per_device_train_batch_size=BATCH, learning_rate=3e-3, logging_steps=5,
            train_sampling_strategy="sequential", save_strategy="no", report_to="none", disable_tqdm=True, use_cpu=True,
        )  # fmt: skip
        trainer = Trainer(model=model, args=arguments, train_dataset=rows())

        guard = sg.attach(trainer, run_dir=run_dir)  # the one line
        trainer.train()
        guard.close()

    told = guard.summary()
    print(f"{told['steps']} steps, {told['skipped']} refused")
    for incident in guard.incidents:
        diagnosis = incident.diagnosis
        print(f"step {incident.first_step}: {incident.headline}; cause {diagnosis.cause.slug}")
        print(f"    {diagnosis.origin.source}")
    return guard


if __name__ == "__main__":
    main(*sys.argv[1:2])

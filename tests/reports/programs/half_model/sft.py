"""Fine-tuning through the Trainer with a model class of another file: half weights, and half training on a GPU."""

import sys

import torch
from base_llm import BaseLLM
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments


def tiny_checkpoint(folder: str) -> str:
    """A checkpoint small enough for a test."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=64, num_key_value_heads=2, **sizes)).save_pretrained(folder)
    return folder


def train_model(folder: str) -> None:
    """As the report's `homework.sft train`."""
    llm = BaseLLM(tiny_checkpoint(folder + "/base"))
    torch.manual_seed(1)
    rows = [{"input_ids": ids, "labels": ids} for ids in torch.randint(0, 32, (24, 8)).tolist()]
    training_args = TrainingArguments(
        output_dir=folder + "/out",
        learning_rate=2e-4,
        num_train_epochs=1,
        per_device_train_batch_size=4,
        save_strategy="epoch",
        save_total_limit=1,
        logging_steps=1,
        report_to="none",
        optim="adamw_torch",
        fp16=torch.cuda.is_available(),
        max_grad_norm=1.0,
        label_names=["labels"],
        disable_tqdm=True,
    )
    Trainer(model=llm.model, args=training_args, train_dataset=rows).train()


train_model(sys.argv[1])

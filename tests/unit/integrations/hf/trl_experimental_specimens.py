"""The trainers of `trl.experimental` that train on one CPU, over the tiny model.

Some of them sample their own answers, from a model that must not answer with the bad token by itself; some shuffle
whatever they are told; some load a teacher from disk. Those that need a server (asynchronous GRPO and distillation,
distillation from a server) are not here.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

from datasets import Dataset
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from torch import Tensor, is_grad_enabled, nn
from trainer_specimens import BAD_TOKEN, VOCABULARY, tiny_model, tiny_tokenizer
from transformers import GPT2LMHeadModel, PreTrainedTokenizerFast, Trainer
from trl.experimental.a2po import A2POConfig, A2POTrainer
from trl.experimental.cpo import CPOConfig, CPOTrainer
from trl.experimental.gkd import GKDConfig, GKDTrainer
from trl.experimental.gmpo import GMPOConfig, GMPOTrainer
from trl.experimental.gold import GOLDConfig, GOLDTrainer
from trl.experimental.iw_opd import IWOPDConfig, IWOPDTrainer
from trl.experimental.online_dpo import OnlineDPOConfig, OnlineDPOTrainer
from trl.experimental.orpo import ORPOConfig, ORPOTrainer
from trl.experimental.sdft import SDFTConfig, SDFTTrainer
from trl.experimental.sdpo import SDPOConfig, SDPOTrainer
from trl.experimental.tpo import TPOConfig, TPOTrainer
from trl_specimens import IN_ORDER, PLAIN, SAMPLED, Rows, common, even_words, pairs, words

_SHORT = {"max_length": 32}


def cpo_trainer(path: Path, rows: Rows, *, stop_at: int | None = None, **arguments: Any) -> Trainer:
    config = CPOConfig(output_dir=str(path), **(IN_ORDER | _SHORT | arguments))
    return CPOTrainer(
        model=tiny_model(), args=config, train_dataset=Dataset.from_dict(pairs(rows)), **common(stop_at)
    )  # fmt: skip


def orpo_trainer(path: Path, rows: Rows, *, stop_at: int | None = None, **arguments: Any) -> Trainer:
    config = ORPOConfig(output_dir=str(path), **(IN_ORDER | _SHORT | arguments))
    return ORPOTrainer(
        model=tiny_model(), args=config, train_dataset=Dataset.from_dict(pairs(rows)), **common(stop_at)
    )  # fmt: skip


def tpo_trainer(path: Path, rows: Rows, *, stop_at: int | None = None, **arguments: Any) -> Trainer:
    triples = pairs(rows)
    triples["reference"] = triples["chosen"]
    config = TPOConfig(output_dir=str(path), **(IN_ORDER | _SHORT | arguments))
    return TPOTrainer(
        model=tiny_model(), args=config, train_dataset=Dataset.from_dict(triples), **common(stop_at)
    )  # fmt: skip


def gmpo_trainer(path: Path, rows: Rows, *, stop_at: int | None = None, **arguments: Any) -> Trainer:
    return GMPOTrainer(
        model=tiny_model(with_grad_only=True),
        reward_funcs=even_words,
        args=GMPOConfig(output_dir=str(path), **(SAMPLED | arguments)),
        train_dataset=_prompts(rows),
        **common(stop_at),
    )


def online_dpo_trainer(path: Path, rows: Rows, *, stop_at: int | None = None, **arguments: Any) -> Trainer:
    return OnlineDPOTrainer(
        model=_careful(tiny_model(with_grad_only=True)),
        ref_model=tiny_model(dropout=0.0),
        reward_funcs=even_words,
        args=OnlineDPOConfig(output_dir=str(path), max_new_tokens=4, **(IN_ORDER | _SHORT | arguments)),
        train_dataset=_prompts(rows),
        **common(stop_at),
    )


def a2po_trainer(path: Path, rows: Rows, *, stop_at: int | None = None, **arguments: Any) -> Trainer:
    trainer = A2POTrainer(
        model=_careful(tiny_model(with_grad_only=True)),
        reward_funcs=even_words,
        args=A2POConfig(output_dir=str(path), max_completion_length=4, num_value_samples=2, **(IN_ORDER | arguments)),
        train_dataset=_prompts(rows),
        **common(stop_at),
    )
    # Otherwise sampled before training, for every prompt there is: data without one batch would draw other numbers.
    trainer._optimal_values = dict.fromkeys(words(rows), 0.5)
    return trainer


def gkd_trainer(path: Path, rows: Rows, *, stop_at: int | None = None, **arguments: Any) -> Trainer:
    return GKDTrainer(
        model=_careful(tiny_model(with_grad_only=True)),
        teacher_model=tiny_model(with_grad_only=True, seed=1),
        args=GKDConfig(output_dir=str(path), max_new_tokens=4, lmbda=0.5, **(IN_ORDER | arguments)),
        train_dataset=_chats(rows),
        **common(stop_at, _talking(tiny_tokenizer())),
    )


def gold_trainer(path: Path, rows: Rows, *, stop_at: int | None = None, **arguments: Any) -> Trainer:
    options = {"max_completion_length": 4, "lmbda": 0.5, "use_uld_loss": False}
    return _in_order(GOLDTrainer)(
        model=_careful(tiny_model(with_grad_only=True)),
        teacher_model=tiny_model(with_grad_only=True, seed=1),
        args=GOLDConfig(output_dir=str(path), **(PLAIN | _SHORT | options | arguments)),
        train_dataset=_chats(rows, pending_numbers=lambda token: chr(33 + token), between=""),
        **common(stop_at, _letters()),
    )


def iw_opd_trainer(path: Path, rows: Rows, *, stop_at: int | None = None, **arguments: Any) -> Trainer:
    return _in_order(IWOPDTrainer)(
        model=_careful(tiny_model(with_grad_only=True)),
        teacher_model=_on_disk(path, seed=1),
        args=IWOPDConfig(output_dir=str(path), max_completion_length=4, **(PLAIN | _SHORT | arguments)),
        train_dataset=_chats(rows),
        **common(stop_at, _talking(tiny_tokenizer())),
    )


def sdft_trainer(path: Path, rows: Rows, *, stop_at: int | None = None, **arguments: Any) -> Trainer:
    return SDFTTrainer(
        model=_careful(_on_disk(path)),
        args=SDFTConfig(output_dir=str(path), distillation_topk=8, **(SAMPLED | arguments)),
        train_dataset=Dataset.from_dict(
            {"prompt": words([row[:4] for row in rows]), "privileged_context": words([row[4:] for row in rows])}
        ),
        **common(stop_at, _talking(tiny_tokenizer())),
    )


def sdpo_trainer(path: Path, rows: Rows, *, stop_at: int | None = None, **arguments: Any) -> Trainer:
    """Its teacher is an average of the weights over the steps: a refused one must not count in it."""
    return SDPOTrainer(
        model=_careful(_on_disk(path)),
        reward_funcs=even_words,
        args=SDPOConfig(output_dir=str(path), **(SAMPLED | arguments)),
        train_dataset=_prompts(rows),
        **common(stop_at, _talking(tiny_tokenizer())),
    )


ROWS_OF_EXPERIMENTS: dict[Callable[..., Trainer], int] = {
    cpo_trainer: 2, orpo_trainer: 2, tpo_trainer: 2, online_dpo_trainer: 2, gmpo_trainer: 1, a2po_trainer: 2,
    gkd_trainer: 2, gold_trainer: 2, iw_opd_trainer: 2, sdft_trainer: 1, sdpo_trainer: 1,
}  # fmt: skip


def _careful(model: GPT2LMHeadModel) -> GPT2LMHeadModel:
    """The same model, which never samples the bad token."""

    def suppress(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        if is_grad_enabled():
            return output
        output = output.clone()
        output[..., BAD_TOKEN] = -1e4
        return output

    model.lm_head.register_forward_hook(suppress)
    return model


def _on_disk(path: Path, **which: Any) -> GPT2LMHeadModel:
    """A model that says where it was loaded from: a teacher or its tokenizer is loaded from there."""
    model = tiny_model(with_grad_only=True, **which)
    model.save_pretrained(path / "model")
    _talking(tiny_tokenizer()).save_pretrained(path / "model")
    model.config._name_or_path = str(path / "model")
    return model


def _in_order(kind: type[Trainer]) -> type[Trainer]:
    """The same trainer, which takes the data as it comes."""

    def sampler(self: Any, dataset: Any = None) -> Any:
        made = kind._get_train_sampler(self, dataset)
        made.shuffle = False
        return made

    return type(kind.__name__, (kind,), {"_get_train_sampler": sampler})


def _prompts(rows: Rows) -> Dataset:
    return Dataset.from_dict({"prompt": words(rows)})


def _chats(
    rows: Rows, *, pending_numbers: Callable[[int], str] = lambda token: f"w{token}", between: str = " "
) -> Dataset:
    def said(role: str, tokens: Any) -> dict[str, str]:
        return {"role": role, "content": between.join(map(pending_numbers, tokens))}

    return Dataset.from_dict({"messages": [[said("user", row[:4]), said("assistant", row[4:])] for row in rows]})


def _talking(tokenizer: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
    return tokenizer


def _letters() -> PreTrainedTokenizerFast:
    """One letter a token, as a byte-level BPE without merges."""
    vocabulary = {"<pad>": 0, "<eos>": 1, "<unk>": 2} | {chr(33 + token): token for token in range(3, VOCABULARY)}
    inner = Tokenizer(BPE(vocabulary, [], unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
    made.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    return made

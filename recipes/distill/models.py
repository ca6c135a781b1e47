"""The teacher, the student, and both as one module for the guard."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from recipes.common.smollm import load_smollm2
from steadygrad import UsageError

from .experts import routed_layers, split_into_experts
from .spelling import BEGIN, encode, mark, train_tokenizer

TINY = "tiny"
"""Name of a teacher that is random and small: what it says is noise, but everything runs as with a real one."""


@dataclass(frozen=True, slots=True)
class Teacher:
    """A causal language model, its tokenizer, and the mark its texts begin with."""

    model: Any
    tokenizer: Any
    begin: int
    name: str

    @property
    def vocabulary(self) -> int:
        return int(self.model.config.vocab_size)


def load_teacher(name: str | None, *, dtype: torch.dtype, passages: Sequence[str], seed: int = 0) -> Teacher:
    """SmolLM2 by default; a folder, GGUF file, wheel or hub id; or `tiny`. Dense: it has no experts yet."""
    if name == TINY:
        tokenizer = train_tokenizer(passages, vocabulary=512)
        torch.manual_seed(seed)
        config = LlamaConfig(
            vocab_size=512, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=2048,
        )  # fmt: skip
        return Teacher(LlamaForCausalLM(config).to(dtype).eval(), tokenizer, mark(tokenizer, BEGIN), TINY)
    model, tokenizer = load_smollm2(name, dtype=dtype)
    begin = tokenizer.convert_tokens_to_ids("<|endoftext|>")
    if begin is None or begin == tokenizer.unk_token_id:
        begin = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
    return Teacher(model, tokenizer, int(begin), name or "SmolLM2-135M-Instruct")


def give_experts(
    teacher: Teacher, passages: Sequence[str], *, experts: int, top_k: int, shared: float, device: torch.device
) -> None:
    """Split the teacher's feed-forward layers and freeze all but the routers, looking at some passages."""
    if not any(hasattr(module, "gate_proj") for module in teacher.model.modules()):
        raise UsageError(f"The teacher {teacher.name} has no gated feed-forward layers (gate, up, down) to split.")
    rows = [torch.tensor([[teacher.begin, *encode(teacher.tokenizer, text)]], device=device) for text in passages]
    split_into_experts(teacher.model.to(device), rows, experts=experts, top_k=top_k, shared=shared)


def make_student(*, vocabulary: int, width: int, layers: int, seed: int) -> LlamaForCausalLM:
    """A small Llama with random weights, in float32."""
    torch.manual_seed(seed)
    heads = width // 32
    student = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary, hidden_size=width, intermediate_size=4 * width, num_hidden_layers=layers,
            num_attention_heads=heads, num_key_value_heads=heads, max_position_embeddings=2048,
            tie_word_embeddings=True, attention_dropout=0.0,
        )
    )  # fmt: skip
    with torch.no_grad():
        # Its very first gradients say how often each token comes, with a norm that grows with the width: 3 at 256. They
        # shall pass the limit of 2 that is meant for what comes later.
        student.model.norm.weight.fill_((32 / width) ** 0.5)
    return student


def save_student(student: Any, folder: Path) -> None:
    """Weights and shape, in a folder that `load_student` reads. Written whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: t.detach().float().cpu().contiguous() for name, t in student.state_dict().items()}
    if student.config.tie_word_embeddings:
        weights.pop("lm_head.weight", None)
    config = {name: getattr(student.config, name) for name in ("vocab_size", "hidden_size", "num_hidden_layers")}
    (folder / "student.json").write_text(json.dumps(config), encoding="utf-8")
    save_file(weights, folder / "student.safetensors.tmp")
    (folder / "student.safetensors.tmp").replace(folder / "student.safetensors")


def load_student(folder: Path) -> LlamaForCausalLM:
    try:
        shape = json.loads((folder / "student.json").read_text(encoding="utf-8"))
        weights = load_file(folder / "student.safetensors")
        student = make_student(
            vocabulary=shape["vocab_size"], width=shape["hidden_size"], layers=shape["num_hidden_layers"], seed=0
        )
        student.load_state_dict(weights, strict=False)
    except FileNotFoundError as error:
        raise UsageError(f"There is no student in {folder}: {Path(str(error.filename)).name} is missing.") from None
    except Exception as error:  # safetensors, json and torch each have their own
        raise UsageError(f"The student in {folder} cannot be read: {error}") from None
    return student


class Pair(nn.Module):
    """Teacher and student as one module, so that the guard knows the names of both. What it trains is the student and
    the routers. `teacher` is None in a run that learns from the text alone."""

    first_piece: Tensor
    compared: Tensor

    def __init__(self, student: Any, teacher: Any, first_piece: Tensor) -> None:
        super().__init__()
        self.student, self.teacher = student, teacher
        self.register_buffer("first_piece", first_piece)
        compared = torch.zeros(student.config.vocab_size, dtype=torch.bool)
        compared[first_piece[first_piece >= 0]] = True
        self.register_buffer("compared", compared)

    def routers(self) -> list[Tensor]:
        return [] if self.teacher is None else [layer.router.weight for layer in routed_layers(self.teacher)]

"""A transformers Trainer with Liger's fused kernels on a CUDA device: a refused batch leaves no trace.

What a Triton kernel does inside is not seen by a trace of torch's operations, so only that there is a diagnosis is
claimed here, and not how far back it reaches.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import steadygrad as sg

pytest.importorskip("liger_kernel")
transformers = pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
VOCABULARY, BAD_TOKEN, STEPS, BAD = 64, 63, 6, 2
KERNELS = {"rms_norm": True, "rope": True, "swiglu": True, "fused_linear_cross_entropy": True}


def tiny_llama() -> nn.Module:
    """Two layers whose embedding is divided by zero wherever the bad token stands."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=64, bos_token_id=1, eos_token_id=1, pad_token_id=0,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)

    def divide(module: nn.Module, inputs: tuple[Tensor], output: Tensor) -> Tensor:
        return output / (inputs[0] != BAD_TOKEN).to(output.dtype).unsqueeze(-1)

    model.model.embed_tokens.register_forward_hook(divide)
    return model


def rows(*, poisoned: bool) -> list[dict[str, Any]]:
    """Two rows a batch; of batch number BAD one row holds the bad token, or the batch is left out."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(3, BAD_TOKEN, (STEPS * 2, 8), generator=generator).tolist()
    if poisoned:
        tokens[2 * BAD][2] = BAD_TOKEN
    else:
        del tokens[2 * BAD : 2 * BAD + 2]
    return [{"input_ids": row, "labels": row, "attention_mask": [1] * 8} for row in tokens]


class StopEarly(transformers.TrainerCallback):
    """One step less, under the schedule of the longer run."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_training_stop = state.global_step >= STEPS - 1


def trainer_of(path: Path, *, poisoned: bool) -> Any:
    arguments = transformers.TrainingArguments(
        output_dir=str(path), max_steps=STEPS, per_device_train_batch_size=2, learning_rate=1e-2, report_to="none",
        train_sampling_strategy="sequential", save_strategy="no", logging_steps=1, disable_tqdm=True,
        use_liger_kernel=True, liger_kernel_config=KERNELS,
    )  # fmt: skip
    callbacks = [] if poisoned else [StopEarly()]
    return transformers.Trainer(
        model=tiny_llama(), args=arguments, train_dataset=rows(poisoned=poisoned), callbacks=callbacks
    )  # fmt: skip


def trained(trainer: Any) -> list[Tensor]:
    torch.manual_seed(7)
    trainer.train()
    moments = [values for state in trainer.optimizer.state_dict()["state"].values() for values in state.values()]
    return [*(p.detach().clone() for p in trainer.model.parameters()), *moments]


def same(one: list[Tensor], two: list[Tensor]) -> bool:
    return len(one) == len(two) and all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def test_a_refused_batch_leaves_no_trace_with_ligers_kernels(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path / "guarded", poisoned=True)
    guard = sg.attach(trainer, run_dir=tmp_path / "run")
    guarded = trained(trainer)
    assert guard.summary()["skipped"] == 1
    assert guard.summary()["guard_faults"] == {}
    plain, again = (trained(trainer_of(tmp_path / name, poisoned=False)) for name in ("plain", "again"))
    assert same(guarded, plain) or not same(plain, again)  # where two plain runs agree, so does the guarded one
    print(guard.incidents[0].diagnosis)
    assert guard.incidents[0].diagnosis is not None

"""The ways people set a Trainer up: each one exact, each one run again as it ran."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from trainer_specimens import all_finite, differences, state_of, tiny_model, tiny_trainer, token_dataset, train
from transformers import Trainer

import steadygrad as sg

STEPS = 5
BAD = 2


def compared(
    path: Path, *, model: Callable[[], Any] = tiny_model, diagnose: str = "origin", accumulation: int = 2,
    prepare: Callable[[Trainer], None] = lambda trainer: None, **arguments: Any,
) -> tuple[Any, Trainer]:  # fmt: skip
    """A guarded run over poisoned data, proved to be the same as a plain one that never saw the bad window."""
    rows = 2 * accumulation
    poisoned = token_dataset(STEPS * rows, bad=[BAD * rows])
    without = token_dataset(STEPS * rows, without=range(BAD * rows, (BAD + 1) * rows))
    options = {"max_steps": STEPS, "gradient_accumulation_steps": accumulation} | arguments
    trainer = tiny_trainer(path / "guarded", poisoned, model=model(), **options)
    prepare(trainer)
    guard = sg.attach(trainer, run_dir=path / "run", diagnose=diagnose)
    train(trainer)
    reference = tiny_trainer(path / "plain", without, model=model(), stop_at=STEPS - 1, **options)
    prepare(reference)
    train(reference)
    assert guard.summary()["guard_faults"] == {}
    assert guard.summary()["skipped"] == 1
    assert differences(state_of(trainer), state_of(reference)) == []
    return guard, trainer


def lora() -> Any:
    model = tiny_model()
    torch.manual_seed(3)
    config = LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True, lora_dropout=0.1, task_type="CAUSAL_LM")
    return get_peft_model(model, config)


@pytest.mark.parametrize("label_names", [None, ["labels"]])
def test_lora_with_and_without_label_names(tmp_path: Path, label_names: list[str] | None) -> None:
    guard, trainer = compared(tmp_path, model=lora, label_names=label_names)
    diagnosis = guard.incidents[0].diagnosis
    assert diagnosis.cause.slug == "zero_division"
    assert "wte" in diagnosis.origin.module
    assert all("lora" in name for name, p in trainer.model.named_parameters() if p.requires_grad)


def test_label_smoothing_is_part_of_the_step_that_is_run_again(tmp_path: Path) -> None:
    guard, _ = compared(tmp_path, label_smoothing_factor=0.1)
    assert guard.incidents[0].diagnosis.reproduced


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing(tmp_path: Path, reentrant: bool) -> None:
    guard, _ = compared(
        tmp_path, gradient_checkpointing=True, gradient_checkpointing_kwargs={"use_reentrant": reentrant}
    )  # fmt: skip
    assert guard.incidents[0].diagnosis.origin.op == "div"


def test_bf16_autocast_is_on_again_in_the_replay(tmp_path: Path) -> None:
    """The forward that accelerate wraps in autocast is the one that is run again."""
    guard, trainer = compared(tmp_path, bf16=True)
    assert trainer.accelerator.mixed_precision == "bf16"
    assert guard.incidents[0].diagnosis.reproduced


@pytest.mark.parametrize(
    "optim", ["adafactor", *(pytest.param(name, marks=pytest.mark.slow) for name in ("adamw_torch", "sgd", "rmsprop"))]
)
def test_optimizers_of_the_trainers_own_list(tmp_path: Path, optim: str) -> None:
    compared(tmp_path, optim=optim, diagnose="off", accumulation=1)


def test_a_loss_function_of_the_users_own(tmp_path: Path) -> None:
    def loss_func(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
        logits = outputs["logits"] if isinstance(outputs, dict) else outputs.logits
        flat = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction="sum")
        return flat / num_items_in_batch

    def prepare(trainer: Trainer) -> None:
        trainer.compute_loss_func = loss_func

    guard, _ = compared(tmp_path, prepare=prepare)
    assert guard.incidents[0].diagnosis.cause.slug == "zero_division"


def test_no_clipping_at_all(tmp_path: Path) -> None:
    compared(tmp_path, max_grad_norm=0.0, diagnose="off", accumulation=1)


@pytest.mark.slow
# dynamo looks at .grad of tensors that have none, and warns itself about it
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_a_compiled_model_is_diagnosed_eagerly(tmp_path: Path) -> None:
    guard, trainer = compared(tmp_path, torch_compile=True, torch_compile_backend="eager", accumulation=1)
    assert type(trainer.model_wrapped).__name__ == "OptimizedModule"
    assert guard.incidents[0].diagnosis.origin.module.endswith("transformer.wte")


def with_scaler(trainer: Trainer, init_scale: float = 1024.0) -> None:
    """As accelerate does for fp16 on a GPU, and only there: a scaler for its optimizer, and unscaling with it."""
    accelerator = trainer.accelerator
    accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=init_scale, growth_interval=1000)

    def unscale_gradients(optimizer: Any = None) -> None:
        for each in accelerator._optimizers:
            accelerator.scaler.unscale_(each.optimizer)

    accelerator.unscale_gradients = unscale_gradients


@pytest.mark.parametrize("optim", ["adamw_torch", "adamw_torch_fused"])
def test_a_nan_under_a_loss_scale_is_refused_and_the_scale_is_not_blamed(tmp_path: Path, optim: str) -> None:
    _, trainer = compared(tmp_path, prepare=with_scaler, optim=optim, diagnose="off")
    assert trainer.accelerator.scaler.get_scale() == 1024.0


@pytest.mark.parametrize("optim", ["adamw_torch", "adamw_torch_fused"])
def test_a_loss_scale_that_is_too_large_backs_off_and_holds_the_schedule(tmp_path: Path, optim: str) -> None:
    """With a fused optimizer accelerate alone calls such a step landed and moves the schedule on."""

    trainer = tiny_trainer(tmp_path, token_dataset(STEPS * 2), max_steps=STEPS, optim=optim)
    with_scaler(trainer, 2.0**127)
    guard = sg.attach(trainer, diagnose="off")
    train(trainer)
    summary = guard.summary()
    assert summary["overflows"] >= 1
    assert summary["applied"] == STEPS - summary["overflows"]
    assert trainer.accelerator.scaler.get_scale() == 2.0 ** (127 - summary["overflows"])
    assert trainer.lr_scheduler.state_dict()["last_epoch"] == summary["applied"]
    assert all_finite(trainer)
    assert summary["guard_faults"] == {}
    assert guard.incidents == []

"""The reports' failing configuration, as it dies, and as it is saved: FP16 weights trained by AdamW with eps 1e-8.

In FP16 the number 1e-8 is 0. A LoRA adapter starts with gradients that are exactly zero, so AdamW divides 0 by 0 and
writes NaN into the weights with perfectly finite gradients: no check of the loss or the gradient sees it coming. The
next step prints loss 0.0 and grad_norm nan, and so does every step after it.

On a GPU this runs the real model. On a CPU, where FP16 is some thirty times slower than FP32, it runs a Llama of the
same make with two narrow layers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from transformers import LlamaForCausalLM, Trainer, TrainerCallback

import steadygrad as sg

from .base_llm import BaseLLM, with_lora
from .command import Recipe, settings_of, two_sides
from .conversions import drawn
from .training import Collate, Row, Settings, arguments_for, seeded

STEPS = 8


def show_sick(recipe: Recipe, options: Any) -> dict[str, Any]:
    """Three runs from the same start: plain, guarded up to the diagnosis, and on with the remedy that was verified."""
    llm = sick_model(recipe, options)
    size = 2 if llm.device == "cpu" else 8
    settings = replace(
        settings_of(recipe, options), batch_size=size, max_steps=STEPS, logging_steps=1, warmup_steps=0, rank=4
    )
    training, _ = two_sides(recipe, options)
    rows = llm.rows((str(q), recipe.reply(q)) for q in drawn(training, STEPS * size, seed=settings.seed))

    print(f"\n{STEPS} steps of the plain Trainer:")
    doomed = adapted(llm, settings)
    plain = trainer_for(doomed, llm, rows, settings, options)
    plain.train()
    told(plain)
    llm.model = doomed.unload()

    print(f"\nThe same {STEPS} steps under guard:")
    model = adapted(llm, settings)
    trainer = trainer_for(model, llm, rows, settings, options)
    with sg.attach(trainer, run_dir=options.out / "sick") as guard:
        trainer.add_callback(StopWhenUnderstood(guard))
        trainer.train()
        incidents, findings = guard.incidents, guard.vitals
    told(trainer)
    if not incidents or not (verified := applicable(incidents[-1])):
        raise sg.SteadyError("The failure did not come, or no remedy for it could be verified: nothing to go on with.")
    remedy = verified[0].remedy
    words = in_words(incidents[-1], trainer, model)
    print(f"\n{words}")

    left = STEPS - trainer.state.global_step + int(trainer.state.global_step > 0)
    print(f"\nOn with it: {remedy.change}, from the last good weights.")
    cured = REMEDIES[remedy.slug](model, replace(settings, max_steps=max(left, 4)))
    healthy = trainer_for(model, llm, rows, cured, options)
    with sg.attach(healthy, run_dir=options.out / "sick-cured") as guard:
        healthy.train()
        counts = guard.summary()
    told(healthy)
    bad = sum(not bool(torch.isfinite(weight).all()) for weight in model.parameters())
    print(f"{counts['applied']} updates were applied, {counts['skipped']} were refused, {bad} weights are not finite.")
    diagnosis = incidents[-1].diagnosis
    return {
        "model": f"{sum(weight.numel() for weight in model.parameters())} parameters on {llm.device}",
        "plain": log_of(plain),
        "guarded": log_of(trainer),
        "incident": words,
        "cause": diagnosis.cause.slug,
        "findings": [finding.detail for finding in findings],
        "verified": [trial.remedy.slug for trial in diagnosis.remedies],
        "applied_remedy": remedy.slug,
        "cured": log_of(healthy),
        "cured_refused": counts["skipped"],
        "non_finite_weights": bad,
    }


def sick_model(recipe: Recipe, options: Any) -> BaseLLM:
    llm = BaseLLM(options.model, instruction=recipe.instruction, cache=options.cache, dtype=torch.float16)
    if llm.device == "cpu":
        print("FP16 is too slow on a CPU to train the real model in: a Llama of the same make with two narrow layers.")
        config = llm.model.config
        for name, value in {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}.items():
            setattr(config, name, value)
        config.num_attention_heads, config.num_key_value_heads, config.head_dim = 2, 1, 32
        with seeded(0):
            llm.model = LlamaForCausalLM(config).to(torch.float16)
    return llm


def adapted(llm: BaseLLM, settings: Settings) -> Any:
    """The frozen FP16 model with a fresh FP16 adapter, which is what makes it sick: PEFT's own default is FP32."""
    with seeded(settings.seed):
        return with_lora(llm.model, rank=settings.rank, fp32=False)


def trainer_for(model: Any, llm: BaseLLM, rows: list[Row], settings: Settings, options: Any) -> Trainer:
    # As the reports had it: AdamW that is not fused (the fused one divides in float32 and explodes instead), and a log
    # that shows 0.0 for a NaN.
    arguments = arguments_for(
        settings, options.out, bf16=False, optim="adamw_torch", save_strategy="no", report_to="none", disable_tqdm=True,
        gradient_checkpointing=False, lr_scheduler_type="constant", logging_nan_inf_filter=True,
    )  # fmt: skip
    collate = Collate(llm.tokenizer.pad_token_id)
    trainer = Trainer(model=model, args=arguments, train_dataset=rows, data_collator=collate)
    trainer.pop_callback(type(trainer.callback_handler.callbacks[-1]))  # prints every line a second time
    return trainer


class StopWhenUnderstood(TrainerCallback):  # type: ignore[misc]
    """Ends training as soon as there is an incident with a verified remedy that this recipe knows how to take."""

    def __init__(self, guard: Any) -> None:
        self.guard = guard

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if any(applicable(incident) for incident in self.guard.incidents):
            control.should_training_stop = True


def applicable(incident: sg.Incident) -> list[Any]:
    """Verified remedies that can be taken here, the one that changes least first."""
    diagnosis = incident.diagnosis
    return [trial for trial in diagnosis.remedies if trial.remedy.slug in REMEDIES] if diagnosis is not None else []


def in_words(incident: sg.Incident, trainer: Trainer, model: Any) -> str:
    """The incident in a paragraph: the optimizer, its epsilon, the dtype, and what was tried."""
    diagnosis, optimizer = incident.diagnosis, trainer.optimizer.optimizer
    assert diagnosis is not None
    assert diagnosis.cause is not None
    assert diagnosis.origin is not None
    dtype = next(weight.dtype for weight in model.parameters() if weight.requires_grad)
    eps = optimizer.param_groups[0]["eps"]
    held = float(torch.tensor(eps, dtype=dtype))
    tried = ", ".join(f"{trial.remedy.slug} ({'holds' if trial.verified else 'fails'})" for trial in diagnosis.trials)
    return (
        f"Incident {incident.number}, {diagnosis.cause.code} {diagnosis.cause.slug}: first in {diagnosis.origin.op} of "
        f"the {diagnosis.phase}, {type(optimizer).__name__} with eps={eps:g} on {str(dtype).removeprefix('torch.')} "
        f"weights, where that eps is {held:g} ({diagnosis.because}). Tried on that step: {tried}."
    )


def _in_fp32(model: Any, settings: Settings) -> Settings:
    for weight in model.parameters():
        if weight.requires_grad:
            weight.data = weight.data.float()
    return settings


def _larger_eps(model: Any, settings: Settings) -> Settings:
    return replace(settings, adam_epsilon=1e-4)


REMEDIES: dict[str, Callable[[Any, Settings], Settings]] = {"fp32": _in_fp32, "optimizer_eps": _larger_eps}


def log_of(trainer: Trainer) -> list[dict[str, Any]]:
    lines = [row for row in trainer.state.log_history if "loss" in row]
    return [
        {"step": row["step"], "loss": _short(row["loss"]), "grad_norm": _short(row.get("grad_norm"))} for row in lines
    ]


def _short(value: Any) -> str:
    return str(float(f"{value:.4g}")) if isinstance(value, float) else str(value)


def told(trainer: Trainer) -> None:
    for row in log_of(trainer):
        print(f"    step {row['step']}: loss {row['loss']}, grad_norm {row['grad_norm']}")

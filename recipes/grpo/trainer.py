"""StableGRPOTrainer: TRL's GRPOTrainer with both logits processors inside generation, both monitors, and the guard.

    args = stable_config(out, max_steps=200, per_device_train_batch_size=32, num_generations=8)
    with StableGRPOTrainer(model, reward, args, train_dataset=rows, processing_class=tokenizer, run_dir=run) as trainer:
        trainer.train()
        print(trainer.told(), trainer.guard.summary())

TRL gives `generate` no logits processors, so generation passes through here: what is sampled from is finite, whatever
the model is. That alone would be a mask over a dying run. A repair is posted on the board of `sg.numerics`, and the
guard, which `sg.attach` puts around the step, refuses the update of a step whose completions came out of it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import torch
from transformers import LogitsProcessorList
from trl import GRPOConfig, GRPOTrainer

import steadygrad as sg
from recipes.common.stopping import StopAtCtrlC

from .statistics import Counted, LogitStatistics

CLIP_VALUE, MIN_PROB, MIN_TEMPERATURE = 30.0, 1e-8, 0.1


class Stopped(Exception):
    """Training was stopped by Ctrl-C and can be resumed."""


def stable_config(out: str | Path, **changes: Any) -> GRPOConfig:
    """The field report's settings: clipping at 1.0, ten steps of warm-up, bfloat16 where there is a GPU for it."""
    on_gpu = torch.cuda.is_available()
    given: dict[str, Any] = {
        "output_dir": str(out),
        "max_grad_norm": 1.0,
        "warmup_steps": 10,
        "bf16": on_gpu and torch.cuda.is_bf16_supported(),
        "fp16": False,
        "use_cpu": not on_gpu,
        "dataloader_pin_memory": on_gpu,
        "lr_scheduler_type": "constant_with_warmup",
        "beta": 0.0,
        "gradient_checkpointing": False,
        "logging_steps": 1,
        "logging_nan_inf_filter": False,  # it prints a plausible loss for a step that was NaN
        "save_strategy": "no",
        "save_total_limit": 3,
        "report_to": "none",
    }
    return GRPOConfig(**{**given, **changes})


class StableGRPOTrainer(GRPOTrainer):  # type: ignore[misc]
    """A GRPOTrainer that stays finite. Takes what GRPOTrainer takes, by the same names.

    Args:
        run_dir: where the guard keeps its journal; None for no journal.
        guarded: False leaves `sg.attach` out. `processors=False` leaves the logits processors out. Both exist so that
            `--sick` can show what each is worth.
        monitors: gradient statistics every ten steps and activation statistics every `activations_every`, printed.
        guard_options: further options of `sg.attach`, such as `policy` or `diagnose`.
        clip_value: sampled logits are held within +- this; 0 for no limit.
        say: where the lines about logits go.
    """

    def __init__(
        self,
        *args: Any,
        run_dir: str | Path | None = None,
        guarded: bool = True,
        processors: bool = True,
        monitors: bool = True,
        activations_every: int = 50,
        clip_value: float = CLIP_VALUE,
        guard_options: dict[str, Any] | None = None,
        say: Callable[[str], None] = print,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.logit_statistics = LogitStatistics()
        self.gradients = sg.GradientMonitorCallback(check_every_n_steps=1, log_every_n_steps=10)
        self.activations = sg.ActivationMonitorCallback(check_every_n_steps=activations_every)
        self.stop = StopAtCtrlC()
        self.processors = LogitsProcessorList(self._processors(say, clip_value or None)) if processors else None
        self.add_callback(self.stop)
        if monitors:
            self.add_callback(self.gradients)
            self.add_callback(self.activations)
        options = {**(guard_options or {}), **({"run_dir": run_dir} if run_dir is not None else {})}
        self.guard = sg.attach(self, **options) if guarded else None

    def _processors(self, say: Callable[[str], None], clip_value: float | None) -> list[Any]:
        """Ours do the dividing by the temperature, so transformers' own must not: it would come after the clipping."""
        warper = sg.numerics.TemperatureLogitsWarper(self.temperature, min_temperature=MIN_TEMPERATURE)
        self.temperature = warper.temperature  # by which the loss divides, too
        self.generation_config.temperature = self.generation_kwargs["temperature"] = 1.0
        stable = sg.numerics.NumericalStabilityLogitsProcessor(clip_value=clip_value, min_prob=MIN_PROB)
        return [Counted(stable, self.logit_statistics, say), warper]

    def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
        if self.processors is None:
            return super()._generate_single_turn(*args, **kwargs)
        model, processors = self.accelerator.unwrap_model(self.model_wrapped), self.processors
        generate = model.generate

        def stable_generate(*inputs: Any, **options: Any) -> Any:
            return generate(*inputs, logits_processor=processors, **options)

        model.generate = stable_generate
        try:
            return super()._generate_single_turn(*args, **kwargs)
        finally:
            del model.generate

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """As GRPOTrainer's; a Ctrl-C ends it after the step under way, with a checkpoint, and is told as `Stopped`."""
        answer = super().train(*args, **kwargs)
        if self.stop.asked:
            raise Stopped(f"Stopped after step {self.state.global_step}; --resume goes on from there.")
        return answer

    def rewards(self) -> list[float]:
        """The mean reward of every logged step."""
        return [float(row["reward"]) for row in self.state.log_history if "reward" in row]

    def told(self) -> str:
        """The statistics of the run so far, in words."""
        lines = [str(self.logit_statistics)]
        if self.gradients.reports:
            lines.append(str(self.gradients.reports[-1]))
        return "\n".join(lines)

    def bad_weights(self) -> list[str]:
        """The names of the parameters that hold a number that is not finite."""
        return [name for name, weight in self.model.named_parameters() if not bool(torch.isfinite(weight).all())]

    def close(self) -> None:
        if self.guard is not None:
            self.guard.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

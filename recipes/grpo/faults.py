"""The toy trained while faults strike it: NaN activations and gradients, flipped weights, logits that are not finite.

After every step all weights and the optimizer's moments are looked at. What counts: crashes, and steps after which a
number that is not finite was in there because an update put it there. A fault that strikes a weight itself is no
update; how long it stayed is told on its own line.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

import steadygrad as sg
from recipes.common import plots
from recipes.units.report import hardware

from .settings import prepared
from .toy import SETTINGS, byte_tokenizer, prompts, share_of_digits, tiny_llama
from .trainer import StableGRPOTrainer
from .training import config_for, mean, outcome_of, quieten

# By default a guard gives up after three ways back in a row, because then the trouble is no accident. Here it is one.
POLICY = sg.Policy.named("balanced").but(max_rollbacks=10**6, snapshot_every=20)
IN_SAMPLING = ("nan_logits",)
IN_TRAINING = tuple(kind for kind in sg.testing.KINDS if kind not in (*IN_SAMPLING, "flipped_weight"))
"""A flipped exponent bit makes a weight of 1e36. That is finite, and so is all that follows: what such a weight costs
is learning and not finiteness, so it strikes only if it is asked for."""


def count_faults(
    out: Path, *, steps: int = 500, rate: float = 0.1, flips: bool = False, seed: int = 0, show: bool = True
) -> dict[str, Any]:
    """Train for so many steps under faults and say what came of it; the figures lie in `out/faults.json` too."""
    settings = replace(SETTINGS, steps=steps, seed=seed, learning_rate=1e-3)
    prepared(out, settings.check(), resume=False)
    kinds = (*IN_TRAINING, "flipped_weight") if flips else IN_TRAINING
    model = tiny_llama(seed)
    arguments = config_for(settings, out, disable_tqdm=not show, save_strategy="no")
    crashed, started = None, time.perf_counter()
    with (
        StableGRPOTrainer(
            model, share_of_digits, arguments, train_dataset=prompts(), processing_class=byte_tokenizer(),
            run_dir=out / "run", guard_options={"diagnose": "off", "policy": POLICY}, monitors=False,
            say=lambda line: None,
        ) as trainer,
        sg.testing.inject(model, rate=rate, kinds=kinds, seed=seed) as in_training,
        # A completion is a dozen passes of the model, so these come as often as the others together.
        sg.testing.inject(model, rate=rate / settings.max_tokens, kinds=IN_SAMPLING, seed=seed + 1) as in_sampling,
    ):  # fmt: skip
        quieten(trainer)
        watch = WeightWatch(trainer)
        trainer.add_callback(watch)
        try:
            trainer.train()
        except (RuntimeError, sg.SteadyError) as error:
            crashed = f"{type(error).__name__}: {error}"
        told = outcome_of(trainer)
    result = {
        "steps": told["steps"],
        "asked": steps,
        "rate": rate,
        "seed": seed,
        "faults": in_training.counts() | in_sampling.counts(),
        "num_faults": len(in_training.struck) + len(in_sampling.struck),
        "crashes": int(crashed is not None),
        "crash": crashed,
        "non_finite_updates": watch.bad_updates,
        "steps_with_a_bad_weight": watch.bad_steps,
        "refused": told["refused"],
        "rolled_back": told["rolled_back"],
        "incidents": told["incidents"],
        "non_finite_weights_at_the_end": told["non_finite_weights"],
        "reward_first": told["reward_first"],
        "reward_last": told["reward_last"],
        "logits": told["logits"],
        "seconds": round(time.perf_counter() - started, 1),
        "hardware": hardware(),
        "date": time.strftime("%Y-%m-%d"),
    }
    curve = [(float(row["step"]), float(row["reward"])) for row in trainer.state.log_history if "reward" in row]
    plots.lines(out / "reward.svg", "mean reward of each step, under faults", {"reward": smoothed(curve)}, log=False)
    (out / "faults.json").write_text(json.dumps(result, indent=2) + "\n")
    (out / "faults.md").write_text(table(result) + "\n")
    print(table(result))
    return result


class WeightWatch(TrainerCallback):  # type: ignore[misc]
    """Looks at every weight and moment before and after each update."""

    def __init__(self, trainer: StableGRPOTrainer) -> None:
        self._trainer = trainer
        self._bad_before = False
        self.bad_updates = 0
        self.bad_steps = 0

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._bad_before = not self._all_finite()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        bad = not self._all_finite()
        self.bad_steps += bad
        self.bad_updates += bad and not self._bad_before

    def _all_finite(self) -> bool:
        moments = [
            value
            for kept in self._trainer.optimizer.state.values()
            for value in kept.values()
            if isinstance(value, torch.Tensor)
        ]
        weights = [weight.detach() for weight in self._trainer.model.parameters()]
        return all(bool(torch.isfinite(value).all()) for value in [*weights, *moments])


def smoothed(curve: list[tuple[float, float]], width: int = 10) -> list[tuple[float, float]]:
    return [(curve[end - 1][0], mean([y for _, y in curve[end - width : end]])) for end in range(width, len(curve) + 1)]


def table(result: dict[str, Any]) -> str:
    kinds = ", ".join(f"{number} {kind}" for kind, number in sorted(result["faults"].items()))
    rows = {
        "steps": f"{result['steps']} of {result['asked']}",
        "faults": f"{result['num_faults']} ({kinds})",
        "crashes": result["crashes"],
        "non-finite updates": result["non_finite_updates"],
        "steps that ended with a weight not finite": result["steps_with_a_bad_weight"],
        "updates refused": result["refused"],
        "went back to an earlier state": result["rolled_back"],
        "weights not finite at the end": result["non_finite_weights_at_the_end"],
        "rows of logits repaired": result["logits"]["rows_repaired"],
        "reward, first and last five steps": f"{result['reward_first']:.3f} -> {result['reward_last']:.3f}",
    }
    lines = ["| what | count |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())]
    if result["crash"]:
        lines.append(f"\nIt ended with {result['crash']}")
    lines.append(f"\n{result['seconds']:.0f} s, {result['hardware']}, {result['date']}, seed {result['seed']}.")
    return "\n".join(lines)

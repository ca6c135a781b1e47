"""The guarded loop: one `sg.Guard`, validation on the way, recovery from the last good checkpoint, a log to plot."""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

import steadygrad as sg
from recipes.common.progress import Tick, progress_bar
from recipes.common.speaking import put_aside
from steadygrad.journal import steps_table

from .config import Config, as_yaml
from .losses import make_loss, validate
from .model import MMDiT
from .prepared import Prepared, batches


@dataclass(frozen=True)
class Result:
    """What came of a run."""

    first: dict[str, float]
    last: dict[str, float]
    guard: dict[str, Any]
    recoveries: int
    interrupted: bool
    seconds: float

    def plain(self) -> dict[str, Any]:
        shown = {key: self.guard[key] for key in ("steps", "applied", "skipped", "rolled_back", "success_rate")}
        return {
            **shown,
            "validation_first": self.first,
            "validation_last": self.last,
            "recoveries": self.recoveries,
            "interrupted": self.interrupted,
            "seconds": round(self.seconds, 1),
        }


def make_optimizer(model: nn.Module, config: Config) -> AdamW:
    """Fused, so that the guard can refuse an update on the device. Norms, biases and embeddings do not decay."""
    named = list(model.named_parameters())
    wide = [p for n, p in named if p.dim() == 2 and not n.endswith(("embedding.weight", "place"))]
    narrow = [p for n, p in named if p.dim() != 2 or n.endswith(("embedding.weight", "place"))]
    settings = config.optimizer
    return AdamW(
        [{"params": wide, "weight_decay": settings.weight_decay}, {"params": narrow, "weight_decay": 0.0}],
        lr=settings.lr,
        betas=(settings.beta1, settings.beta2),
        eps=settings.eps,
        fused=True,
    )


def make_schedule(optimizer: Optimizer, config: Config) -> LambdaLR:
    """Up over the warm-up, down along a cosine to a twentieth."""
    warmup = min(config.training.warmup_steps, config.training.num_train_steps)
    steps = max(config.training.num_train_steps, warmup + 1)

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        done = min(1.0, (step - warmup) / (steps - warmup))
        return 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * done))

    return LambdaLR(optimizer, factor)


def train(
    config: Config, data: Prepared, run_dir: Path, *, device: str = "cpu", resume: bool = False, show: bool = True
) -> tuple[Result, nn.Module]:
    """Train to the last step, past whatever goes wrong on the way. Raises TrainingHalted when recoveries run out."""
    if not resume:
        put_aside(run_dir, "run.json")
    run_dir.mkdir(parents=True, exist_ok=True)
    (run_dir / "config.yaml").write_text(as_yaml(config), encoding="utf-8")
    data.tokenizer.save(str(run_dir / "tokenizer.json"))
    log = ValidationLog(run_dir / "validation.jsonl", keep=resume)
    began, recoveries, skip_to = time.monotonic(), 0, 0
    with progress_bar("train", config.training.num_train_steps, show=show) as tick:
        while True:
            torch.manual_seed(config.training.seed)
            model = MMDiT(config).to(device)
            try:
                interrupted, summary = _attempt(config, data, run_dir, model, log, tick, resume, skip_to)
                break
            except sg.TrainingHalted as halted:
                if recoveries == config.training.max_recoveries:
                    raise
                recoveries += 1
                # The checkpoint is from before the streak. The data goes on behind it: those batches halted the run.
                resume, skip_to = True, log.place
                tick(log.step, f"recovery {recoveries}: back to the last good checkpoint ({halted})")
            finally:
                # Where the guard could not begin there is no journal, and why it could not is what must be seen.
                if (run_dir / "run.json").exists():
                    export_log(run_dir)
    save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, run_dir / "model.safetensors")
    result = Result(log.lines[0], log.lines[-1], summary, recoveries, interrupted, time.monotonic() - began)
    (run_dir / "result.json").write_text(json.dumps(result.plain(), indent=1) + "\n", encoding="utf-8")
    return result, model


def _attempt(
    config: Config,
    data: Prepared,
    run_dir: Path,
    model: nn.Module,
    log: ValidationLog,
    tick: Tick,
    resume: bool,
    skip_to: int,
) -> tuple[bool, dict[str, Any]]:
    """From the start or the last good checkpoint to the end. True if a person stopped it."""
    training = config.training
    optimizer = make_optimizer(model, config)
    guard = sg.Guard(
        model,
        optimizer,
        make_loss(config),
        max_grad_norm=config.optimizer.grad_clip_norm,
        scheduler=make_schedule(optimizer, config),
        precision=training.dtype,
        accumulate=training.gradient_accumulation_steps,
        policy=training.policy,
        run_dir=run_dir,
        checkpoint_every=training.save_steps,
        resume=resume,
    )
    with guard:
        log.rewind(guard.step_number)
        passed_over = _passed_over(run_dir / "passed_over.json", resume, skip_to, guard.batches_seen)
        log.place = start = guard.batches_seen + passed_over
        feed = batches(data.train, training.train_batch_size, seed=training.seed, start=start)
        interrupted = False
        try:
            while guard.step_number < training.num_train_steps:
                step = guard.step_number
                if step % training.eval_every == 0 and not log.has(step):
                    guard.settle()
                    tick(step, log.add(step, validate(model, config, data.val)))
                while guard.step_number == step:
                    log.place += 1
                    guard.step(next(feed))
                    log.step = guard.step_number
                tick(guard.step_number, "")
        except KeyboardInterrupt:
            interrupted = True
        guard.settle()
        if not log.has(guard.step_number):
            tick(guard.step_number, log.add(guard.step_number, validate(model, config, data.val)))
        return interrupted, guard.summary()


def _passed_over(path: Path, resume: bool, skip_to: int, batches_seen: int) -> int:
    """How many batches recoveries have left out so far, kept in a file for a run that is resumed later."""
    if skip_to:
        path.write_text(json.dumps({"batches": max(0, skip_to - batches_seen)}) + "\n", encoding="utf-8")
    elif not resume:
        path.unlink(missing_ok=True)
    return int(json.loads(path.read_text(encoding="utf-8"))["batches"]) if path.is_file() else 0


class ValidationLog:
    """The validation losses of a run, a line of JSON each; a run that goes back takes the later lines back too."""

    def __init__(self, path: Path, *, keep: bool) -> None:
        self.path = path
        self.step = self.place = 0
        text = path.read_text(encoding="utf-8") if keep and path.is_file() else ""
        self.lines: list[dict[str, float]] = [json.loads(line) for line in text.splitlines()]

    def has(self, step: int) -> bool:
        return any(line["step"] == step for line in self.lines)

    def add(self, step: int, losses: dict[str, float]) -> str:
        self.lines.append({"step": step, **losses})
        self._write()
        return f"text {losses['text']:.3f}  latent {losses['latent']:.3f}"

    def rewind(self, step: int) -> None:
        self.lines = [line for line in self.lines if line["step"] <= step]
        self._write()

    def _write(self) -> None:
        self.path.write_text("".join(json.dumps(line) + "\n" for line in self.lines), encoding="utf-8")


def export_log(run_dir: Path) -> Path:
    """The journal's steps as `training_log.jsonl`: a line of JSON a step, with `loss`, null where it was not finite.

    Of a step that was made again, after a rollback or in a resumed run, the last one counts.
    """
    path = run_dir / "training_log.jsonl"
    made = {row["step"]: row for row in steps_table(run_dir).to_pylist()}
    with path.open("w", encoding="utf-8") as file:
        for _, row in sorted(made.items()):
            kept = {"step": row["step"], "loss": row["loss"], **dict(row["terms"] or ())}
            kept |= {"grad_norm": row["grad_norm"], "lr": row["lr"]}
            finite = {key: value if value is not None and math.isfinite(value) else None for key, value in kept.items()}
            file.write(json.dumps({**finite, "applied": row["applied"]}) + "\n")
    return path


def load_trained(config: Config, run_dir: Path, device: str) -> nn.Module:
    """The model of a finished run."""
    path = run_dir / "model.safetensors"
    if not path.is_file():
        raise sg.UsageError(f"{run_dir} holds no trained model. Train one: python -m recipes.latent_dlm train.")
    model = MMDiT(config)
    try:
        model.load_state_dict(load_file(path))
    except RuntimeError as error:
        raise sg.UsageError(f"{path} was trained with another configuration: {error}") from None
    return model.to(device).eval()

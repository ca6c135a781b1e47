"""The configuration: a YAML file with the sections of the field report, read into frozen types and checked twice.

What cannot work is an error with a sentence (`load`). What is likely to hurt is the doctor's business (`doctor_says`).
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

import steadygrad as sg

CONFIGS = Path(__file__).parent / "configs"
MODES = ("unconditional", "latent_to_text", "text_to_latent", "random")


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    corpus: str = "sample"
    """`sample` (a few thousand WordNet sentences, shipped), or a text file with one sentence a line."""
    max_sentences: int | None = None
    val_sentences: int = 500
    vocab_size: int = 2048
    seq_len: int = 24


@dataclass(frozen=True, kw_only=True)
class LatentConfig:
    encoder: str = "auto"
    """`auto` (the sentence encoder if it is installed, else the projection), `minilm`, `projection`, or a folder."""
    dim: int = 384
    prediction: str = "epsilon"
    schedule: str = "cosine"


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    hidden_size: int = 128
    n_blocks: int = 4
    n_heads: int = 4
    mlp_hidden: int = 512
    latent_tokens: int = 4
    dropout: float = 0.0


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    lr: float = 5e-5
    weight_decay: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    grad_clip_norm: float = 0.5


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    seed: int = 0
    dtype: str = "bf16"
    train_batch_size: int = 32
    num_train_steps: int = 400
    warmup_steps: int = 2000
    gradient_accumulation_steps: int = 1
    mode: str = "random"
    eval_every: int = 100
    save_steps: int = 1000
    max_recoveries: int = 2
    policy: str = "balanced"


@dataclass(frozen=True, kw_only=True)
class LossConfig:
    text_loss_weight: float = 1.0
    latent_loss_weight: float = 0.1
    loss_scale: float = 1.0
    text_weighting: str = "mean"
    """`mean` over the hidden tokens, or `elbo`: each divided by its share of hidden tokens, a bound on likelihood."""
    pad_weight: float = 0.1
    """What a token after the end of the sentence weighs. The model has to learn lengths, and little else from them."""


@dataclass(frozen=True, kw_only=True)
class Config:
    name: str = "unnamed"
    data: DataConfig = field(default_factory=DataConfig)
    latent: LatentConfig = field(default_factory=LatentConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    loss: LossConfig = field(default_factory=LossConfig)


def find(name_or_path: str) -> Path:
    """The file behind `tiny`, `configs/tiny.yaml` or a path of one's own."""
    given = Path(name_or_path)
    for path in (given, CONFIGS / given.name, CONFIGS / f"{given.name}.yaml"):
        if path.is_file():
            return path
    known = ", ".join(sorted(path.stem for path in CONFIGS.glob("*.yaml")))
    raise sg.UsageError(f"There is no configuration {name_or_path!r}. Pass a YAML file, or one of: {known}.")


def load(name_or_path: str, changes: Sequence[str] = ()) -> tuple[Config, Path]:
    """A configuration and the file it came from, with `section.key=value` changes on top."""
    path = find(name_or_path)
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise sg.UsageError(f"{path} is not YAML: {error}") from None
    if not isinstance(values, dict):
        raise sg.UsageError(f"{path} holds no sections. See {CONFIGS / 'tiny.yaml'} for what they are.")
    for change in changes:
        key, sign, text = change.partition("=")
        section, dot, name = key.partition(".")
        if not sign or not dot:
            raise sg.UsageError(f"--set {change} is not understood: write it as section.key=value.")
        values.setdefault(section, {})[name] = yaml.safe_load(text)
    config = _filled(Config, {"name": path.stem, **values}, str(path))
    check(config)
    return config, path


def _filled(kind: type[Any], values: Mapping[str, Any], where: str) -> Any:
    hints = typing.get_type_hints(kind)
    if unknown := sorted(set(values) - set(hints)):
        raise sg.UsageError(f"{where}: {', '.join(unknown)} is not known. There is: {', '.join(sorted(hints))}.")
    made = {}
    for key, value in values.items():
        wanted = hints[key]
        if dataclasses.is_dataclass(wanted):
            if not isinstance(value, Mapping):
                raise sg.UsageError(f"{where}: {key} must be a section with keys, not {value!r}.")
            made[key] = _filled(typing.cast(type[Any], wanted), value, f"{where}: {key}")
        else:
            made[key] = _converted(wanted, value, f"{where}: {key}")
    return kind(**made)


def _converted(wanted: Any, value: Any, where: str) -> Any:
    """A value in its type. YAML 1.1 reads `5e-5` as text, which is the most common slip in such files."""
    kinds = typing.get_args(wanted) or (wanted,)
    if value is None and type(None) in kinds:
        return None
    kind = next(each for each in kinds if each is not type(None))
    if kind is str and isinstance(value, str):
        return value
    try:
        if kind in (int, float) and not isinstance(value, bool) and float(value) == kind(float(value)):
            return kind(float(value))
    except (TypeError, ValueError, OverflowError):
        pass
    raise sg.UsageError(f"{where}: {value!r} is not {'a number' if kind is not str else 'a word'}.")


def check(config: Config) -> None:
    """Raise for what cannot work, with a sentence."""
    model, training, data = config.model, config.training, config.data
    rules = (
        (model.hidden_size % model.n_heads == 0, "model.hidden_size must be a multiple of model.n_heads"),
        (training.mode in MODES, f"training.mode must be one of {', '.join(MODES)}"),
        (training.dtype in ("fp32", "bf16", "fp16"), "training.dtype must be fp32, bf16 or fp16"),
        (config.latent.prediction in ("epsilon", "velocity"), "latent.prediction must be epsilon or velocity"),
        (config.latent.schedule == "cosine", "latent.schedule must be cosine"),
        (config.loss.text_weighting in ("mean", "elbo"), "loss.text_weighting must be mean or elbo"),
        (config.loss.text_loss_weight > 0 or config.loss.latent_loss_weight > 0, "one of the losses needs a weight"),
        (data.vocab_size >= 300, "data.vocab_size must be at least 300: 256 bytes, the marks and something to merge"),
        (data.seq_len >= 4, "data.seq_len must be at least 4"),
        (data.val_sentences >= 2, "data.val_sentences must be at least 2"),
        (training.gradient_accumulation_steps >= 1, "training.gradient_accumulation_steps must be at least 1"),
        (training.train_batch_size >= 1, "training.train_batch_size must be at least 1"),
        (training.eval_every >= 1, "training.eval_every must be at least 1"),
    )
    for holds, sentence in rules:
        if not holds:
            raise sg.UsageError(f"The configuration {config.name} cannot work: {sentence}.")


def as_yaml(config: Config) -> str:
    return str(yaml.safe_dump(dataclasses.asdict(config), sort_keys=False))


def doctor_says(config: Config) -> list[str]:
    """What the doctor finds in the settings as they are after `--set`, a line each. An error of its is one of ours.

    The doctor fills gaps with a program's own defaults only where it knows the program, so it gets our settings in the
    words of one that it knows.
    """
    optimizer, training = config.optimizer, config.training
    known = {
        "output_dir": config.name,
        "optim": "adamw_torch_fused",
        "learning_rate": optimizer.lr,
        "adam_epsilon": optimizer.eps,
        "max_grad_norm": optimizer.grad_clip_norm,
        "warmup_steps": training.warmup_steps,
        "save_steps": training.save_steps,
        "gradient_accumulation_steps": training.gradient_accumulation_steps,
        "bf16": training.dtype == "bf16",
        "fp16": training.dtype == "fp16",
        "logging_nan_inf_filter": False,
    }
    advice = sg.doctor(args=known, show=False).advice
    for each in advice:
        if each.level == "error":
            raise sg.UsageError(f"The configuration {config.name} would hurt. {each.code} {each.slug}: {each.detail}")
    return [f"{each.code} {each.slug}: {each.detail}" for each in advice]

"""The settings of a run, wherever they were written: a file, a saved TrainingArguments, a call in a script, an object.

A rule asks for a setting by its name and does not care where it stands: `fp16` may be a key of a YAML file, a keyword
of `TrainingArguments(...)` or a field of the live object. Dialects that spell a thing differently are listed in
`SPELLINGS`, once.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from .script import UNKNOWN, Name, Script, last_word

SPELLINGS: Final[dict[str, tuple[str, ...]]] = {
    "learning_rate": (
        "learning_rate", "lr", "base_lr", "max_lr", "peak_lr", "init_lr", "initial_lr", "base_learning_rate",
        "max_learning_rate", "peak_learning_rate", "initial_learning_rate", "student_lr",
    ),
    "max_grad_norm": (
        "max_grad_norm", "gradient_clipping", "gradient_clip_val", "clip_grad_norm", "grad_clip", "grad_clip_norm",
        "gradient_clip_norm", "gradient_clip", "grad_norm_clip", "clip_norm", "clip_grad", "grad_clip_val",
        "max_gradient_norm", "clip_gradients", "grad_clipping", "clip_max_norm",
    ),
    "model": ("model_name_or_path", "base_model", "pretrained_model_name_or_path", "model_name", "model_id", "model"),
    "epsilon": ("adam_epsilon", "adam_eps", "optimizer_eps", "opt_eps", "eps", "epsilon"),
    "optimizer": ("optim", "optimizer", "optimizer_name"),
    "warmup": (
        "warmup_steps", "warmup_ratio", "warmup_num_steps", "num_warmup_steps", "lr_warmup_steps", "warmup",
        "warmup_iters", "warmup_epochs", "warmup_updates", "warmup_fraction", "n_warmup_steps", "lr_warmup",
    ),
    "precision": ("precision", "mixed_precision", "dtype", "torch_dtype", "model_dtype", "amp_dtype", "train_dtype"),
    "loss_scale": ("loss_scale", "init_scale", "initial_scale_power", "grad_scaler", "use_grad_scaler", "loss_scaling"),
    "batch_size": (
        "per_device_train_batch_size", "train_batch_size", "micro_batch_size", "batch_size", "per_device_batch_size",
        "train_micro_batch_size_per_gpu",
    ),
    "accumulation": (
        "gradient_accumulation_steps", "accumulate_grad_batches", "grad_accum_steps", "accumulation_steps",
        "gradient_accumulation", "grad_accum", "grad_accumulation_steps", "accum_steps", "accum_iter", "update_freq",
    ),
    "length": (
        "num_train_steps", "max_steps", "train_steps", "total_steps", "num_steps", "max_iters", "num_train_epochs",
        "num_epochs", "epochs", "max_epochs", "n_epochs", "training_steps", "max_train_steps",
    ),
    "save_interval": (
        "save_steps", "save_every", "save_interval", "save_freq", "checkpoint_every", "checkpoint_interval",
        "ckpt_interval", "ckpt_every", "save_every_n_steps", "checkpointing_steps", "checkpoint_steps", "save_iters",
    ),
    "save_limit": ("save_total_limit", "keep_last", "keep_last_n", "max_to_keep", "checkpoints_total_limit"),
    "log_interval": ("logging_steps", "log_every", "log_interval", "log_steps", "log_freq", "log_every_n_steps"),
}  # fmt: skip
OF_A_SECTION: Final = {"epsilon": re.compile(r"optim|adam", re.IGNORECASE)}
"""Spellings that mean this setting only at the top or under such a section: layers have an eps too."""
OF_TRAINING: Final = (
    "learning_rate", "max_grad_norm", "epsilon", "warmup", "batch_size", "accumulation", "length", "save_interval",
    "weight_decay", "optimizer",
)  # fmt: skip
OF_SEQUENCES: Final = {
    "n_heads", "num_heads", "n_head", "num_attention_heads", "n_layer", "n_layers", "d_model", "seq_len", "max_seq_len",
    "sequence_length", "seq_length", "max_seq_length", "max_length", "vocab_size", "block_size", "tokenizer",
}  # fmt: skip
ARGUMENT_CLASSES = {
    "TrainingArguments", "SFTConfig", "GRPOConfig", "DPOConfig", "RLOOConfig", "KTOConfig", "ORPOConfig", "CPOConfig",
    "RewardConfig",
}  # fmt: skip
DEEPSPEED_KEYS = {"zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size", "gradient_clipping"}
LORA_KEYS = {"lora_r", "lora_rank", "lora_alpha", "lora_target", "lora_target_modules"}
OF_TRANSFORMERS_ALONE = {
    "per_device_train_batch_size",
    "per_device_eval_batch_size",
    "num_train_epochs",
    "logging_nan_inf_filter",
}
BESIDE_OUTPUT_DIR = {
    "learning_rate", "fp16", "bf16", "max_grad_norm", "adam_epsilon", "warmup_steps", "warmup_ratio", "save_steps",
    "save_strategy", "save_total_limit", "eval_strategy", "gradient_checkpointing", "max_steps", "lr_scheduler_type",
}  # fmt: skip
NAMES_A_MODE = {"train_mode", "train_type", "training_type", "finetuning_type", "tuning_type", "sft_type"}
NAMES_WEIGHTS = {"model_name_or_path", "base_model", "pretrained_model_name_or_path"}
NAMES_A_CLASS = {"type", "name", "_target_", "_component_", "class_path"}
BUILT_BY_NAME = {"_component_", "_target_", "class_path"}
"""Keys of programs that build objects from their configuration: they have their own settings."""


_TAGGED = re.compile(r"!(?:name|new|apply|py):?[\w.]*optim\w*\.(\w+)")
"""An optimizer that YAML names in a tag: `!name:torch.optim.Adadelta`."""


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """Settings by their path of keys, with the line each stands on.

    `kind` is transformers, deepspeed, lightning or accelerate, whose defaults fill what is not written; own, which has
    settings of a training under other names; or unknown, in which no training was recognised.
    `explicit` are the keys someone wrote; a saved TrainingArguments has all and cannot tell.
    """

    path: str
    values: Mapping[tuple[str, ...], Any]
    lines: Mapping[tuple[str, ...], int] = dataclasses.field(default_factory=dict)
    kind: str = "unknown"
    complete: bool = True
    first_line: int = 0
    text: tuple[str, ...] = ()
    script: Script | None = None
    saved: bool = False
    of_library: bool = False
    """Made by a trainer class, or in an installed package: a default for others, and no run."""

    def keys(self, name: str) -> Iterator[tuple[str, ...]]:
        """The paths of keys that end in this setting, in any of its spellings, shallow ones first."""
        yield from keys_of(self.values, name)

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a setting; UNKNOWN if it is set to what only running would tell."""
        return next((self.values[path] for path in self.keys(name)), default)

    def has(self, name: str) -> bool:
        """Whether someone set it at all."""
        return any(True for _ in self.keys(name))

    def on(self, name: str) -> bool:
        """A switch that is on, in whatever spelling; DeepSpeed writes `{"fp16": {"enabled": true}}`."""
        value = self.get(name)
        if value is None and (nested := [path for path in self.values if path[-2:] == (name, "enabled")]):
            value = self.values[nested[0]]
        return value is True or (isinstance(value, str) and value.lower() in ("true", "yes", "on"))

    def number(self, name: str) -> float | None:
        """A setting as a number, also where YAML made a string of it; None if it is not one."""
        value = self.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float | str) or isinstance(value, Name):
            return None
        try:
            return float(value)
        except ValueError:
            return None

    def word(self, name: str) -> str:
        """A setting as a lower-case word; "" if it is not one."""
        value = self.get(name)
        return str(value).lower() if isinstance(value, str | int) and not isinstance(value, bool) else ""

    def line_of(self, name: str) -> int:
        """The line a setting stands on, or the one where the settings begin."""
        nested = [path for path in self.values if path[-2:] == (name, "enabled")]
        path = next(iter([*self.keys(name), *nested]), None)
        return self.lines.get(path, self.first_line) if path else self.first_line

    def text_at(self, line: int) -> str:
        """The text of a line, as written."""
        return self.text[line - 1].rstrip() if 0 < line <= len(self.text) else ""

    # -- what several rules ask

    @property
    def half(self) -> bool:
        """Mixed precision in float16."""
        return self.on("fp16") or self.word("precision") in (
            "fp16",
            "16",
            "16-mixed",
            "float16",
            "torch.float16",
            "half",
        )

    @property
    def lora(self) -> bool:
        """An adapter is trained, not the whole model."""
        if any(path[-1] == "adapter" and not value for path, value in self.values.items()):
            return False  # the switch is there and names none: what is written about adapters is not used
        if any(plain_key(path[-1]) in NAMES_A_MODE and value == "full" for path, value in self.values.items()):
            return False
        if self.word("adapter") in ("lora", "qlora") or self.word("finetuning_type") == "lora" or self.on("use_peft"):
            return True
        if self.script is not None:
            return uses_peft(self.script)
        return any(path[-1].lower() in LORA_KEYS for path in self.values)

    @property
    def other_adapter(self) -> bool:
        """An adapter is trained that is not LoRA; prompts and scalings live at other learning rates."""
        if self.script is None:
            return False
        if self.script.imports("adapters"):
            return True
        return self.lora and not self.script.words & {"LoraConfig", "FastLanguageModel"}

    @property
    def pretrained(self) -> bool:
        """Whether a pretrained model is named: in a program's own settings `model: transducer` is an architecture, and
        what stands in another section (`postencoder: {model_name_or_path: bert}`) is a part."""
        if self.script is not None and "from_pretrained" in self.script.called:
            return True
        names = [(path, self.values[path]) for path in self.keys("model")]
        words = [(path, word) for path, word in names if isinstance(word, str) and not word.startswith(("<", "$"))]
        if self.kind != "own":
            return bool(words)
        whole = [(path[-1], word) for path, word in words if all("model" in plain_key(part) for part in path[:-1])]
        return any(key in NAMES_WEIGHTS or "/" in word for key, word in whole)

    @property
    def adam(self) -> bool:
        """An optimizer of Adam's family, or none named where Adam is the default."""
        words = [str(self.values[path]).lower() for path in self.keys("optimizer")]
        words += [
            str(value).lower()
            for path, value in self.values.items()
            if len(path) > 1 and path[-2] in ("optimizer", "optim") and path[-1] in NAMES_A_CLASS
        ]
        tagged = [found.lower() for line in self.text for found in _TAGGED.findall(line)]
        words += tagged
        # Of several optimizers it is not known whose the rate is.
        named = any("adam" in word for word in words) and all("adam" in word for word in tagged)
        if self.kind != "own":
            return named or (not words and self.kind == "transformers")
        # An epsilon, or a second decay rate, is what the optimizers of Adam's family have and plain SGD has not.
        return named or (not words and (self.has_moments or self.sequences))

    @property
    def has_moments(self) -> bool:
        """Settings that only optimizers of Adam's family have."""
        keys = {plain_key(path[-1]) for path in self.values}
        return bool(keys & {"betas", "beta2", "adam_beta2"}) or self.has("epsilon")

    @property
    def sequences(self) -> bool:
        """A transformer or recurrent network, or what one needs: warm-up with half precision or accumulation."""
        if {plain_key(part) for path in self.values for part in path} & OF_SEQUENCES:
            return True
        return self.has("warmup") and (
            self.half or self.on("bf16") or self.has("precision") or self.has("accumulation")
        )

    def off(self, name: str) -> bool:
        """Set to nothing: 0 or below, null or false."""
        number = self.number(name)
        return self.has(name) and (self.get(name) in (None, False) or (number is not None and number <= 0))


def uses_peft(script: Script) -> bool:
    """Whether a script wraps its model in an adapter."""
    return script.imports("peft", "unsloth") and bool(
        script.words & {"get_peft_model", "LoraConfig", "peft_config", "FastLanguageModel", "add_adapter"}
    )


@functools.lru_cache(4096)
def plain_key(key: str) -> str:
    """A key as the spellings have it: `gradClipNorm` and `grad-clip-norm` are grad_clip_norm."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key).lower().replace("-", "_")


def keys_of(values: Mapping[tuple[str, ...], Any], name: str) -> Iterator[tuple[str, ...]]:
    """The paths of keys that end in a setting, in any of its spellings, shallow ones first."""
    section = OF_A_SECTION.get(name)
    spellings = {spelling: place for place, spelling in enumerate(SPELLINGS.get(name, (name,)))}
    found = [path for path in values if plain_key(path[-1]) in spellings]
    for path in sorted(found, key=lambda path: (spellings[plain_key(path[-1])], len(path))):
        if section is None or len(path) == 1 or any(section.search(part) for part in path):
            yield path


def kind_of(values: Mapping[tuple[str, ...], Any]) -> str:
    """Whose settings these are, judged by keys only that program has."""
    keys, first = {path[-1] for path in values}, {path[0] for path in values}
    if first & DEEPSPEED_KEYS and first & {"fp16", "bf16", "zero_optimization", "optimizer", "scheduler"}:
        return "deepspeed"
    if "trainer" in first and keys & {"gradient_clip_val", "max_epochs", "accelerator", "precision"}:
        return "lightning"
    if "distributed_type" in first and "mixed_precision" in first:
        return "accelerate"
    written = keys & OF_TRANSFORMERS_ALONE or ("output_dir" in first and first & BESIDE_OUTPUT_DIR)
    if written and not keys & BUILT_BY_NAME:
        return "transformers"
    named = [name for name in OF_TRAINING if any(True for _ in keys_of(values, name))]
    return "own" if len(named) >= (2 if "learning_rate" in named else 3) else "unknown"


def parts(key: str) -> list[str]:
    """`optimizer.lr`, as overrides are written, is lr of optimizer; a key that is no such path is itself."""
    return key.split(".") if re.fullmatch(r"[A-Za-z_][\w-]*(\.[A-Za-z_][\w-]*)+", key) else [key]


def flatten(data: Any, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Nested mappings as paths of keys. Lists are values, except lists of mappings, whose members are looked into. What
    a run has recorded is none of its settings."""
    if isinstance(data, Mapping):
        if _is_recorded(data):
            return {}
        found: dict[tuple[str, ...], Any] = {}
        for key, value in data.items():
            found |= flatten(value, (*path, *parts(str(key))))
        return found
    if isinstance(data, list) and any(isinstance(item, Mapping) for item in data):
        found = {}
        for number, item in enumerate(data):
            found |= flatten(item, (*path, str(number)))
        return found
    return {path: data} if path else {}


def _is_recorded(data: Mapping[Any, Any]) -> bool:
    """Whether a run wrote this down as it went: the state of a trainer, or a line of its log."""
    measured = isinstance(data.get("loss", data.get("train_loss")), int | float)
    return "log_history" in data or (measured and any(key in data for key in ("step", "epoch", "iteration")))


def from_script(script: Script) -> Iterator[Settings]:
    """The settings written into a script: calls of TrainingArguments and its kin, lightning's Trainer, Accelerator."""
    for call in script.calls:
        word = last_word(call.func)
        if word in ARGUMENT_CLASSES or word.endswith("TrainingArguments"):
            kind = "transformers"
        elif (
            word == "Trainer"
            and script.imports("lightning", "pytorch_lightning")
            and not script.imports("transformers")
        ):
            kind = "lightning"
        elif word == "Accelerator" and script.imports("accelerate"):
            kind = "accelerate"
        else:
            continue
        named = [(each.arg, each.value) for each in call.keywords if each.arg is not None]
        yield Settings(
            path=script.path,
            values={(name,): script.literal(value) for name, value in named},
            lines={(name,): value.lineno for name, value in named},
            kind=kind,
            complete=len(named) == len(call.keywords),
            first_line=call.lineno,
            text=tuple(script.lines),
            script=script,
            of_library=_is_library(script, call),
        )


def _is_library(script: Script, call: ast.Call) -> bool:
    owner = script.class_of(call)
    named = [] if owner is None else [owner.name, *(last_word(base) for base in owner.bases)]
    return "site-packages" in script.path or any(name.endswith("Trainer") for name in named)


def from_object(args: Any, path: str = "args") -> Settings:
    """The settings of a live object: TrainingArguments, any dataclass, a namespace or a mapping."""
    if isinstance(args, Mapping):
        values: Mapping[str, Any] = args
    elif dataclasses.is_dataclass(args) and not isinstance(args, type):
        values = {field.name: getattr(args, field.name, None) for field in dataclasses.fields(args)}
    else:
        values = {key: value for key, value in vars(args).items() if not key.startswith("_")}
    flat = {key: _plain(value) for key, value in flatten(dict(values)).items()}
    return Settings(path=path, values=flat, kind=kind_of(flat), saved=not isinstance(args, Mapping))


def _plain(value: Any) -> Any:
    # An enum of transformers (`SaveStrategy.NO`) is the word it stands for.
    inner = getattr(value, "value", value)
    return inner if isinstance(inner, bool | int | float | str | list | tuple | None) else UNKNOWN

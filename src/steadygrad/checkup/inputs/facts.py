"""What was measured of live objects and of a data set, as plain numbers. Rules judge these and never touch a tensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...records.checks.checkup import DataStatistics
from .run_settings import Settings

SMALLEST = {"float16": 2.0**-24, "bfloat16": 2.0**-133, "float32": 2.0**-149, "float64": 2.0**-1074}
"""The smallest positive number; half of it and less rounds to zero."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterFacts:
    """One parameter. `typical` is the median magnitude of a sample of it, None where it was not checked."""

    name: str
    dtype: str = "float32"
    numel: int = 1
    trainable: bool = True
    in_optimizer: bool = True
    typical: float | None = None
    finite: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFacts:
    """One parameter group of an optimizer. `dtypes` are those of its parameters, `state_dtypes` of its moments."""

    kind: str = "AdamW"
    lr: float | None = 1e-3
    eps: float | None = 1e-8
    dtypes: tuple[str, ...] = ("float32",)
    state_dtypes: tuple[str, ...] = ()
    fused: bool = False
    num_parameters: int = 1

    @property
    def adam(self) -> bool:
        """Of Adam's family: an update is about as large as the learning rate."""
        return "adam" in self.kind.lower() or self.kind in ("Lion", "LAMB", "AdEMAMix")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """A model with its optimizers as they stand before the first step."""

    model_class: str = "Model"
    model_type: str = ""
    pretrained: bool = False
    """Whether it was loaded from somewhere: a model made from a configuration has no name."""
    parameters: tuple[ParameterFacts, ...] = ()
    groups: tuple[GroupFacts, ...] = ()
    on_cuda: bool = False
    on_cpu: bool = True
    bf16_hardware: bool = False
    has_scaler: bool = False
    has_scheduler: bool | None = None
    precision: str = ""
    guarded: bool = False
    cannot_refuse: tuple[str, ...] = ()
    peft: bool = False
    peft_type: str = ""
    checkpointing: bool = False
    reentrant: bool | None = None
    inputs_require_grad: bool | None = None
    embedding_trainable: bool | None = None
    num_embeddings: int | None = None
    num_tokens: int | None = None
    max_positions: int | None = None
    settings: Settings | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    traits: frozenset[str] = frozenset()
    """What known bugs need to show: words of `checkup/rules/versions/known_bugs.toml`."""

    @property
    def trainable(self) -> tuple[ParameterFacts, ...]:
        """The parameters that shall learn."""
        return tuple(parameter for parameter in self.parameters if parameter.trainable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """What was seen in the rows of a data set. Row numbers are those of the data set."""

    statistics: DataStatistics = field(default_factory=DataStatistics)
    rows_taught_nothing: tuple[int, ...] = ()
    rows_cut: tuple[int, ...] = ()
    rows_empty_mask: tuple[int, ...] = ()
    rows_non_finite: tuple[tuple[int, str], ...] = ()
    rows_too_long: tuple[int, ...] = ()
    rows_unequal: tuple[int, ...] = ()
    largest_token: int | None = None
    smallest_token: int | None = None
    row_of_largest: int = 0
    strange_labels: tuple[tuple[int, int], ...] = ()
    eos: int | None = None
    pad: int | None = None
    padding_side: str = ""
    num_left_padded: int = 0
    num_right_padded: int = 0
    generates: bool = False
    num_embeddings: int | None = None
    max_positions: int | None = None

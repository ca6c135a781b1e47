"""Process-wide switches of torch, set for a replay and restored exactly, also where the replay raises."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from ....detect.tensors.foreign_objects import getattr
from ....detect.tensors.torch_private import (
    fill_memory_of,
    get_deterministic,
    get_mkldnn,
    get_precision,
    reduced_sums_of,
    set_deterministic,
    set_mkldnn,
    set_precision,
)
from ....engine.recovery.reruns.quiet import no_warnings
from ...replay.replay_step import ReplayChange


@dataclass(frozen=True, slots=True)
class Switch:
    """One switch: `write(read())` changes nothing."""

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], Any]


class BackendFlags(ReplayChange):
    """Switches at other values while a step runs. They are process-wide, so backward threads see them too."""

    def __init__(self, *wanted: tuple[Switch, Any]) -> None:
        self.wanted = wanted

    @contextmanager
    def around(self) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(no_warnings())  # "this op has no deterministic form" and the like
            for switch, value in self.wanted:
                stack.callback(switch.write, switch.read())
                switch.write(value)
            yield


def _attribute(owner: Any, name: str) -> Switch:
    return Switch(name, lambda: getattr(owner, name), lambda value: setattr(owner, name, value))


def _reduction(kind: str) -> Switch:
    """Reduced-precision sums in a matmul. Newer versions keep a second bit (split-k) that only the tuple restores."""
    name = f"allow_{kind}_reduced_precision_reduction"
    return Switch(name, reduced_sums_of(kind), lambda value: setattr(torch.backends.cuda.matmul, name, value))


_cuda = torch.backends.cuda
ATTENTION = {
    "flash": Switch("flash_sdp", _cuda.flash_sdp_enabled, _cuda.enable_flash_sdp),
    "efficient": Switch("mem_efficient_sdp", _cuda.mem_efficient_sdp_enabled, _cuda.enable_mem_efficient_sdp),
    "cudnn": Switch("cudnn_sdp", _cuda.cudnn_sdp_enabled, _cuda.enable_cudnn_sdp),
    "math": Switch("math_sdp", _cuda.math_sdp_enabled, _cuda.enable_math_sdp),
}
FP16_ACCUMULATION = _attribute(torch.backends.cuda.matmul, "allow_fp16_accumulation")
REDUCED_SUMS = (_reduction("fp16"), _reduction("bf16"))
CUDNN = _attribute(torch.backends.cudnn, "enabled")
CUDNN_BENCHMARK = _attribute(torch.backends.cudnn, "benchmark")
CUDNN_DETERMINISTIC = _attribute(torch.backends.cudnn, "deterministic")
MKLDNN = Switch("mkldnn", get_mkldnn, set_mkldnn)
DETERMINISTIC = Switch("deterministic_algorithms", get_deterministic, set_deterministic)
FILL_MEMORY = Switch("fill_uninitialized_memory", *fill_memory_of)


# -- float32 products in TF32 or bfloat16: an older switch, and newer ones that inherit from each other

Key = tuple[str, str]
_ROOT, _CUDA = ("generic", "all"), ("cuda", "all")
_MATMULS = (("cuda", "matmul"), ("mkldnn", "matmul"))
_CONVOLUTIONS = (("cuda", "conv"), ("cuda", "rnn"))


def _own(key: Key) -> str:
    """The value that was set here; "none" where it is the parent's. Both read alike, so the parent is moved."""
    if key == _ROOT:
        return str(get_precision(*key))
    parent = _ROOT if key[1] == "all" else (key[0], "all")
    before = _own(parent)
    try:
        set_precision(*parent, "ieee")
        first = str(get_precision(*key))
        set_precision(*parent, "tf32")
        return first if first == str(get_precision(*key)) else "none"
    finally:
        set_precision(*parent, before)


@dataclass(frozen=True, slots=True)
class Precisions:
    """How float32 products are computed: the older switch, and what is set in each of the newer ones."""

    legacy: str | None
    """None where the program uses the newer switches: torch refuses to read the older one then."""
    own: tuple[tuple[Key, str], ...]


def _read_precisions() -> Precisions:
    try:
        legacy: str | None = torch.get_float32_matmul_precision()
    except RuntimeError:
        legacy = None
    return Precisions(legacy, tuple((key, _own(key)) for key in (_CUDA, *_MATMULS, *_CONVOLUTIONS)))


def _write_precisions(value: Precisions) -> None:
    if value.legacy is not None:
        torch.set_float32_matmul_precision(value.legacy)
    for key, precision in value.own:
        # Convolutions have a default besides "none" that cannot be written: what inherits is left alone.
        if key not in _CONVOLUTIONS or precision != "none":
            set_precision(*key, precision)


FLOAT32 = Switch("float32_precision", _read_precisions, _write_precisions)


def full_float32(*, convolutions: bool = False) -> Precisions:
    """Float32 products in float32, in the terms that this program uses; or convolutions as well, by their parent."""
    now = _read_precisions()
    keys = {*_MATMULS, *((_CUDA,) if convolutions else ())}
    keys |= {key for key, value in now.own if convolutions and key in _CONVOLUTIONS and value != "none"}
    own = tuple((key, "ieee" if key in keys else value) for key, value in now.own)
    return Precisions(None if now.legacy is None else "highest", own)


def reduced_float32(*, convolutions: bool = False) -> bool:
    """Whether float32 products, or convolutions, may be computed in TF32 or bfloat16."""
    return any(get_precision(*key) not in ("none", "ieee") for key in (_CONVOLUTIONS if convolutions else _MATMULS))


SWITCHES = (
    *ATTENTION.values(), FP16_ACCUMULATION, *REDUCED_SUMS, CUDNN, CUDNN_BENCHMARK, CUDNN_DETERMINISTIC, MKLDNN,
    DETERMINISTIC, FILL_MEMORY, FLOAT32,
)  # fmt: skip
"""All that a trial may change."""

"""The one place that says by which other kernels a failing step can be computed, to prove a cause and to remedy it.

What the diagnosis changes to prove that a kernel is wrong is the change that a user makes to avoid it. So both ask
here: `causes/collect_evidence.py` replays the step under the alternatives that would prove a cause, and the remedies
in `remedies/backend/` offer all of them, each with the line of code that does it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from ....detect.tensors.foreign_objects import getattr, isinstance
from ...causes.evidence import Evidence
from ...locate.examine import Examination
from ...replay.replay_step import CANNOT_RUN, ReplayChange, replay
from ...replay.replayable import Replayable
from ...trace.user_frames import UserFrame
from ..optimizer_changes import Options
from .attention import EagerAttention, attention_configs, backend_of, only_backend, without_backend
from .compiled import Eager, EagerModule, KeepCasts, compiled_modules
from .flags import (
    CUDNN,
    CUDNN_BENCHMARK,
    CUDNN_DETERMINISTIC,
    DETERMINISTIC,
    FILL_MEMORY,
    FLOAT32,
    FP16_ACCUMULATION,
    MKLDNN,
    REDUCED_SUMS,
    BackendFlags,
    full_float32,
    reduced_float32,
)
from .unwritten_memory import ClearStaleRows, FillMemory, MemoryChange, WaitForCopies, WaitForStreams

_LIBRARY_OPS = ("convolution", "batch_norm", "rnn", "lstm", "gru", "ctc_loss", "grid_sampler", "affine_grid")
_MATMULS = ("mm", "bmm", "addmm", "baddbmm", "addbmm", "linear", "matmul", "einsum")


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """Another way to compute the step. `slug` is the remedy's; `line` is what a user writes to have it.

    Where a step that fails is finite with an alternative that `proves`, the kernel it avoids is wrong. The others
    change how numbers are rounded, and a failure that they avoid has a cause of another name.
    """

    slug: str
    change: str
    line: str
    make: Callable[[], ReplayChange]
    safety: str = "close"
    proves: bool = False
    if_needed: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedKernel:
    """What is known of the op that failed, as far as another kernel could do better."""

    replayable: Replayable
    op: str = ""
    stage: str = "forward"
    ops: frozenset[str] = frozenset()
    """All ops of the step."""
    half: bool = False
    wrong: bool = False
    """Whether float64 shows that the op's result is finite and fits its type: its arithmetic explains nothing."""
    cause: str = "not asked yet"
    compiled: bool = False
    """Whether the step fails as compiled code and is finite in eager."""
    module: str | None = None
    proved_by: str = ""

    @property
    def on_accelerator(self) -> bool:
        return any(p.device.type != "cpu" for p in self.replayable.model.parameters())


def failed_kernel(
    replayable: Replayable, exam: Examination | None, evidence: Evidence, cause: str = "not asked yet"
) -> FailedKernel:
    """What an examination found out about the op that failed."""
    record = exam.record if exam is not None else None
    named = exam.named if exam is not None else None
    kind = getattr(torch, evidence.dtype, None)
    largest = torch.finfo(kind).max if isinstance(kind, torch.dtype) and kind.is_floating_point else 0.0
    return FailedKernel(
        replayable=replayable,
        op=record.op if record is not None else "",
        stage=evidence.stage,
        ops=frozenset(each.op for each in exam.trace.records) if exam is not None else frozenset(),
        half=evidence.half or evidence.autocast is not None or evidence.dtype == "bfloat16",
        wrong=bool(evidence.facts.float64_finite) and evidence.facts.float64_absmax < largest,
        cause=cause,
        compiled=evidence.compiled,
        module=named.module if named is not None else None,
        proved_by=evidence.proved_by,
    )


def alternatives(failed: FailedKernel) -> Iterator[Alternative]:
    """Every alternative that changes something here, those that change least first."""
    if failed.compiled:
        yield from _of_compiled_code(failed)
        return
    yield from _of_attention(failed)
    yield from _of_products(failed)
    yield from _of_library(failed)
    yield from _of_optimizer(failed)
    yield from _of_order(failed)
    yield from (each for each in OF_MEMORY if each.slug == failed.proved_by)


OF_MEMORY = (
    Alternative(
        slug="zero_tail",
        change="NaN that an earlier step left in the buffer cleared before it is refilled in part",
        line="buffer.zero_()  # before the rows of a short batch are copied in",
        make=ClearStaleRows,
        safety="exact",
    ),
    Alternative(
        slug="wait_for_copy",
        change="queued copies waited for before their memory is used again",
        line="torch.cuda.current_stream().synchronize()  # before the buffer is written again",
        make=WaitForCopies,
        safety="exact",
    ),
    Alternative(
        slug="wait_for_stream",
        change="work on other streams finished before their results are read",
        line="torch.cuda.current_stream().wait_stream(other)  # before its result is read",
        make=WaitForStreams,
        safety="exact",
    ),
    Alternative(
        slug="fill_memory",
        change="memory filled when it is allocated",
        line="torch.zeros(...)  # in place of torch.empty(...)",
        make=FillMemory,
    ),
)
"""What is tried where nothing explains a failure: each removes one way to read memory that the step did not write."""


def proved_by_memory(replayable: Replayable) -> tuple[str, UserFrame, str] | None:
    """The slug of the change of memory under which the step is finite, with the line and what was changed there."""
    for each in OF_MEMORY:
        change = each.make()
        assert isinstance(change, MemoryChange)
        if _finite_with(replayable, change) and change.places:
            # A race may spare one replay: what is proved holds again, and fails again without the change.
            plain, again = _finite_with(replayable, ReplayChange()), _finite_with(replayable, each.make())
            if again and plain is False:
                frame, what = next(iter(change.places.items()))
                return each.slug, frame, what
    return None


def proved_by(failed: FailedKernel) -> str | None:
    """The slug of the alternative under which the step is finite; "" if it fails under all, None if none was run."""
    tried = False
    for each in alternatives(failed):
        finite = _finite_with(failed.replayable, each.make()) if each.proves else None
        if finite:
            return each.slug
        tried = tried or finite is not None
    return "" if tried else None


def _finite_with(replayable: Replayable, change: ReplayChange) -> bool | None:
    try:
        return replay(replayable, change=change).finite
    except CANNOT_RUN:
        return None
    finally:
        change.undo(replayable)


def _of_attention(failed: FailedKernel) -> Iterator[Alternative]:
    if "attention" not in failed.op:
        return
    own = backend_of(failed.op)
    if own is not None and own != "math":
        name = {"efficient": "mem_efficient"}.get(own, own)
        yield Alternative(
            slug="attention_backend",
            change=f"attention without the {own} backend",
            line=f"torch.backends.cuda.enable_{name}_sdp(False)",
            make=lambda: without_backend(own),
            proves=True,
        )
    for other in ("efficient", "flash", "math"):
        if other != own:
            value = {"efficient": "EFFICIENT_ATTENTION", "flash": "FLASH_ATTENTION", "math": "MATH"}[other]
            yield Alternative(
                slug="attention_backend",
                change=f"attention with the {other} backend only",
                line=f"with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.{value}): ...",
                make=_only(other),
                proves=True,
            )
    if attention_configs(failed.replayable.model):
        yield Alternative(
            slug="attention_backend",
            change="attention written out in torch (eager)",
            line='model.set_attn_implementation("eager")',
            make=EagerAttention,
            proves=True,
        )


def _only(name: str) -> Callable[[], ReplayChange]:
    return lambda: only_backend(name)


def _of_products(failed: FailedKernel) -> Iterator[Alternative]:
    if failed.stage == "commit":
        return
    convolves = failed.on_accelerator and any(op.startswith("convolution") for op in failed.ops)
    if reduced_float32() and failed.ops & set(_MATMULS):
        yield Alternative(
            slug="fp32_matmul",
            change="float32 products in float32, not in TF32 or bfloat16",
            line='torch.set_float32_matmul_precision("highest")',
            make=lambda: BackendFlags((FLOAT32, full_float32())),
        )
    if convolves and reduced_float32(convolutions=True):
        yield Alternative(
            slug="fp32_matmul",
            change="convolutions in float32, not in TF32",
            line="torch.backends.cudnn.allow_tf32 = False",
            make=lambda: BackendFlags((FLOAT32, full_float32(convolutions=True))),
        )
    if FP16_ACCUMULATION.read() or (failed.on_accelerator and failed.half):
        narrow = FP16_ACCUMULATION.read()
        name = "allow_fp16_accumulation" if narrow else "allow_fp16_reduced_precision_reduction"
        yield Alternative(
            slug="fp32_accumulation",
            change="sums inside half-precision products in float32",
            line=f"torch.backends.cuda.matmul.{name} = False",
            make=lambda: BackendFlags((FP16_ACCUMULATION, False), *((switch, False) for switch in REDUCED_SUMS)),
        )


def _of_library(failed: FailedKernel) -> Iterator[Alternative]:
    """Where a library's kernel computes the op, and its arithmetic does not explain what came out."""
    if not failed.wrong or not any(name in failed.op for name in _LIBRARY_OPS):
        return
    switch, name = (CUDNN, "cudnn") if failed.on_accelerator else (MKLDNN, "mkldnn")
    if switch.read():
        yield Alternative(
            slug="native_kernel",
            change=f"torch's own kernel in place of {name}'s",
            line=f"with torch.backends.{name}.flags(enabled=False): ...",
            make=lambda: BackendFlags((switch, False)),
            proves=True,
        )


def _of_optimizer(failed: FailedKernel) -> Iterator[Alternative]:
    groups = [group for optimizer in failed.replayable.optimizers for group in optimizer.param_groups]
    if failed.stage == "commit" and any(group.get("fused") for group in groups):
        yield Alternative(
            slug="unfused_optimizer",
            change="the optimizer's update without the fused kernel",
            line="optimizer = type(optimizer)(..., fused=False)",
            make=lambda: Options(fused=lambda _: False),
            proves="fused" in failed.op,
        )


def _of_order(failed: FailedKernel) -> Iterator[Alternative]:
    """Sums in another order each time, or a kernel chosen by a race between several."""
    if failed.cause in ("", "library_bug") and (failed.on_accelerator or torch.backends.cudnn.benchmark):
        yield Alternative(
            slug="deterministic",
            change="deterministic kernels",
            line="torch.use_deterministic_algorithms(True)",
            make=lambda: BackendFlags(
                (DETERMINISTIC, (True, True)),
                (FILL_MEMORY, False),
                (CUDNN_DETERMINISTIC, True),
                (CUDNN_BENCHMARK, False),
            ),
        )


def _of_compiled_code(failed: FailedKernel) -> Iterator[Alternative]:
    compiled = compiled_modules(failed.replayable.model)
    name = failed.module
    if name and name not in compiled:
        yield Alternative(
            slug="eager",
            change=f"{name} in eager, the rest compiled",
            line=f"model.{name}.forward = torch.compiler.disable(model.{name}.forward)",
            make=lambda: EagerModule(name),
            if_needed=False,
        )
    inner = [each for each in compiled if each]
    only = f"model.{inner[0]}.compile()  # leave this out" if len(inner) == 1 == len(compiled) else ""
    yield Alternative(
        slug="eager",
        change="nothing compiled" if not only else f"{inner[0]} not compiled",
        line=only or 'torch.compiler.set_stance("force_eager")',
        make=Eager,
        if_needed=False,
        proves=True,
    )
    yield Alternative(
        slug="emulate_casts",
        change="compiled with every cast between precisions kept",
        line='torch.compile(model, options={"emulate_precision_casts": True})',
        make=KeepCasts,
    )

"""Live objects as facts: what a model and its optimizers are before the first step.

`measure` with `look=True` reads the weights, which waits for the device once. `glance` does not: it looks at names,
dtypes, flags and numbers on the host, so that a guard can afford it at every start.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from ..detect.graph.run_graph_rules import examine_setup
from ..engine.step.device_gate import why_not_on_device
from ..records import Finding, Severity
from ..records.checks.checkup import Advice, Level
from ..records.errors import UsageError
from ..records.rules import page
from .inputs.facts import GroupFacts, ParameterFacts, Setup
from .inputs.run_settings import Settings
from .live_traits import live_traits, versions
from .rules import judges_of_setup

SAMPLE = 4096
"""Elements of a tensor that are looked at for its typical magnitude."""


def glance(
    model: nn.Module,
    optimizer: Any = None,
    *,
    scaler: Any = None,
    scheduler: Any = None,
    precision: str = "",
    ignore: Sequence[str] = (),
) -> tuple[Finding, ...]:
    """What the rules for live objects say, for a guard to print and journal when it starts.

    Neither syncs with the host nor allocates nor communicates. A guard scales the loss itself, so a missing scaler is
    not mentioned. Errors and warnings of the doctor are warnings here: none of them is about a step.
    """
    setup = measure(model, optimizer, scaler=scaler, scheduler=scheduler, precision=precision, guarded=True)
    found = [advice for rule in judges_of_setup() for advice in rule.of_setup(setup)]
    return tuple(_as_finding(advice) for advice in found if not advice.code.startswith(tuple(ignore)))


def _as_finding(advice: Advice) -> Finding:
    return Finding(
        code=advice.code,
        slug=advice.slug,
        severity=Severity.NOTE if advice.level is Level.NOTE else Severity.WARNING,
        step=0,
        subject=advice.subject,
        detail=advice.detail,
        evidence={**advice.evidence, "level": advice.level.value, "help": advice.help},
    )


def silent_errors(model: nn.Module, optimizer: Any = None) -> list[Advice]:
    """Mistakes that model and optimizers show by themselves and that never become non-finite. Reads a few weights."""
    return [
        Advice(
            code=each.code,
            slug=each.slug,
            level=Level.WARNING,
            detail=each.detail,
            help=" ".join(page(each.code).sections["What to do"].split()),
            subject=each.subject,
            evidence=each.evidence,
        )
        for each in examine_setup(model, _optimizers(optimizer))
    ]


def measure(
    model: Any,
    optimizer: Any = None,
    *,
    settings: Settings | None = None,
    tokenizer: Any = None,
    scaler: Any = None,
    scheduler: Any = None,
    precision: str = "",
    look: bool = False,
    guarded: bool = False,
) -> Setup:
    """The facts. With `look` the weights are read: one pass over them, and one wait for each device."""
    if not isinstance(model, nn.Module):
        raise UsageError(
            f"sg.doctor takes a path or a torch.nn.Module, not a {type(model).__name__}. For settings alone write "
            "sg.doctor(args=...), for data sg.doctor(dataset=...)."
        )
    optimizers = _optimizers(optimizer)
    held = {id(p) for each in optimizers for group in each.param_groups for p in group["params"]}
    named = [(name, p) for name, p in model.named_parameters() if not is_lazy(p)]
    looks = _look([p for _, p in named]) if look else [(None, None)] * len(named)
    parameters = tuple(
        ParameterFacts(
            name=name,
            dtype=_dtype(p),
            numel=p.numel(),
            trainable=p.requires_grad,
            in_optimizer=id(p) in held,
            typical=typical,
            finite=finite,
        )
        for (name, p), (typical, finite) in zip(named, looks, strict=True)
    )
    kinds = {p.device.type for _, p in named}
    embedding = _embedding(model)
    config = getattr(model, "config", None)
    checkpointing, reentrant = _checkpointing(model)
    return Setup(
        model_class=type(model).__name__,
        model_type=str(getattr(config, "model_type", "") or ""),
        pretrained=bool(getattr(model, "name_or_path", "") or getattr(config, "_name_or_path", "")),
        parameters=parameters,
        groups=tuple(_group(each, group) for each in optimizers for group in each.param_groups),
        on_cuda="cuda" in kinds,
        on_cpu=kinds <= {"cpu"},
        bf16_hardware="cuda" in kinds and torch.cuda.is_available() and torch.cuda.is_bf16_supported(False),
        has_scaler=scaler is not None,
        has_scheduler=None if scheduler is None and not guarded else scheduler is not None,
        precision=precision,
        guarded=guarded,
        cannot_refuse=tuple(why for each in optimizers if (why := why_not_on_device(each)) is not None),
        peft=hasattr(model, "peft_config"),
        peft_type=_peft_type(model),
        checkpointing=checkpointing,
        reentrant=reentrant,
        inputs_require_grad=_inputs_require_grad(embedding),
        embedding_trainable=None if embedding is None else embedding.weight.requires_grad,
        num_embeddings=None if embedding is None else embedding.weight.shape[0],
        num_tokens=_length(tokenizer),
        max_positions=_whole(getattr(config, "max_position_embeddings", None)),
        settings=settings,
        versions=versions(),
        traits=live_traits(model, optimizers, scaler=scaler, precision=precision, guarded=guarded),
    )


def _optimizers(optimizer: Any) -> list[Optimizer]:
    """Torch optimizers as they are; wrappers such as Accelerate's by what is inside them."""
    if optimizer is None:
        return []
    found: list[Optimizer] = []
    for each in optimizer if isinstance(optimizer, list | tuple) else [optimizer]:
        # Accelerate's wrapper is an Optimizer by name only: it never called Optimizer.__init__.
        wrapped = getattr(each, "optimizer", None)
        inside = wrapped if isinstance(wrapped, Optimizer) else each
        if not isinstance(inside, Optimizer):
            raise UsageError(f"sg.doctor needs a torch.optim.Optimizer or several, got {type(each).__name__}.")
        found.append(inside)
    return found


def _group(optimizer: Optimizer, group: dict[str, Any]) -> GroupFacts:
    parameters: list[Tensor] = group["params"]
    states = [optimizer.state[p] for p in parameters if p in optimizer.state]
    moments = {_dtype(v) for state in states for k, v in state.items() if isinstance(v, Tensor) and k != "step"}
    return GroupFacts(
        kind=type(optimizer).__name__,
        lr=_number(group.get("initial_lr", group.get("lr"))),
        eps=_number(group.get("eps")),
        dtypes=tuple(sorted({_dtype(p) for p in parameters if p.requires_grad})),
        state_dtypes=tuple(sorted(moments)),
        fused=bool(group.get("fused")),
        num_parameters=len(parameters),
    )


def _number(value: Any) -> float | None:
    # A rate that is a tensor on a device is not read: that would wait for the device.
    if isinstance(value, Tensor):
        return float(value) if value.device.type == "cpu" and value.numel() == 1 else None
    if isinstance(value, tuple | list):
        return _number(value[0]) if value else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _length(tokenizer: Any) -> int | None:
    try:
        return None if tokenizer is None else len(tokenizer)
    except TypeError:
        return None


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _embedding(model: nn.Module) -> Any:
    """The table of input embeddings: what the model says it is, or its only one."""
    ask = getattr(model, "get_input_embeddings", None)
    if callable(ask):
        try:
            found = ask()
        except (NotImplementedError, AttributeError):
            found = None
        if isinstance(getattr(found, "weight", None), Tensor):
            return found
    tables = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    return tables[0] if len(tables) == 1 else None


def _peft_type(model: nn.Module) -> str:
    """LORA, IA3 and so on, of the first adapter; "" where there is none."""
    configs = getattr(model, "peft_config", None)
    first = next(iter(configs.values()), None) if isinstance(configs, dict) else None
    kind = getattr(first, "peft_type", "")
    return str(getattr(kind, "value", kind))


def _checkpointing(model: nn.Module) -> tuple[bool, bool | None]:
    """Whether blocks are checkpointed, and whether that re-enters; None where the model does not tell."""
    for module in model.modules():
        if getattr(module, "gradient_checkpointing", False) is True:
            keywords = getattr(getattr(module, "_gradient_checkpointing_func", None), "keywords", {})
            return True, keywords.get("use_reentrant")
    return False, None


def _inputs_require_grad(embedding: Any) -> bool | None:
    """Whether a hook makes the embedding's output require a gradient, as `enable_input_require_grads` does."""
    if embedding is None:
        return None
    hooks: Iterable[Any] = getattr(embedding, "_forward_hooks", {}).values()
    return any("require" in getattr(hook, "__name__", "") for hook in hooks)


def _look(parameters: list[nn.Parameter]) -> list[tuple[float | None, bool | None]]:
    """Typical magnitude and finiteness of each; what holds no values (meta, packed) is left out."""
    found: list[tuple[float | None, bool | None]] = [(None, None)] * len(parameters)
    by_device: dict[torch.device, list[tuple[int, Tensor]]] = {}
    with torch.no_grad():
        for number, parameter in enumerate(parameters):
            local = parameter.to_local() if hasattr(parameter, "to_local") else parameter.detach()
            if local.device.type == "meta" or not local.is_floating_point() or local.numel() == 0:
                continue
            flat = local.reshape(-1)
            part = flat[:: max(1, flat.numel() // SAMPLE)].abs().float()
            # The largest magnitude is NaN or infinite if any value is: one pass, and no mask in memory.
            largest = torch.linalg.vector_norm(flat, ord=float("inf")).float()
            by_device.setdefault(local.device, []).append((number, torch.stack([part.median(), largest])))
        for pairs in by_device.values():
            for (number, _), (typical, top) in zip(pairs, torch.stack([t for _, t in pairs]).tolist(), strict=True):
                found[number] = (typical if math.isfinite(typical) else None, math.isfinite(top))
    return found

"""inject(): puts faults into the passes of a model, at steps that are named or at random by a seed.

It listens to the model alone, so it works under any loop or trainer, and takes its random choices from its own
generator: without a strike the run has the same bits as without it. Nothing here syncs with the host. A pass that is
run again (a replay of a diagnosis, a rerun after a rollback) is no training pass: it is neither counted nor struck.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from random import Random
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ..records.errors import UsageError
from ..records.rerun_flag import rerunning
from .fault_kinds import FLIPS, KINDS, SAMPLING, spoil_gradient, spoil_weight, spoilt, spoilt_row

_KEPT = 256  # handles of hooks that are gone by themselves, kept so that close() can take off one that is not


@dataclass(frozen=True, slots=True, kw_only=True)
class Strike:
    """One fault that was put in: at which training pass, counted from zero, of which kind, and where.

    Args:
        step: the training pass, counted from zero.
        kind: one of `KINDS`.
        target: the module or parameter.

    Returns:
        A frozen record.

    Example:
        >>> sg.testing.Strike(step=3, kind="nan_gradient", target="head.weight").target
        'head.weight'
    """

    step: int
    kind: str
    target: str


def inject(
    model: nn.Module,
    *,
    at: Mapping[int, str | Iterable[str]] | None = None,
    rate: float = 0.0,
    kinds: Iterable[str] | None = None,
    seed: int = 0,
) -> Faults:
    """Put faults into the passes of `model` from now on, until the `with` block ends or `close` is called.

    Args:
        model: the module whose forward the loop calls.
        at: the kind, or kinds, for each training pass that is to be struck, counted from zero; replays and reruns of
            steadygrad are not training passes. "nan_logits" strikes the first pass without gradients that comes when
            so many training passes are done.
        rate: the chance of a strike at every pass, for faults at random. Passes with gradients get kinds of training,
            the others "nan_logits".
        kinds: what to choose from at random; by default all of `KINDS` but flips of any bit, most of which do no harm.
        seed: of the choices of pass, kind, module, parameter and element.

    Returns:
        A Faults, which is a context manager and knows what it has struck.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 1))
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> with sg.testing.inject(model, at={1: "nan_gradient"}), sg.attach(optimizer, model=model) as guard:
        ...     for _ in range(3):
        ...         optimizer.zero_grad()
        ...         model(torch.ones(8, 4)).pow(2).mean().backward()
        ...         optimizer.step()
        >>> guard.summary()["skipped"]
        1
    """
    return Faults(model, at=dict(at or {}), rate=rate, kinds=tuple(kinds) if kinds is not None else None, seed=seed)


class Faults:
    """What `inject` returns: a context manager that knows what it has struck.

    Args:
        model, at, rate, kinds, seed: as for `inject`.

    Returns:
        A context manager; `struck` lists every Strike so far, `close()` takes the hooks off.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 1))
        >>> with sg.testing.inject(model, at={0: "nan_activation"}) as faults:
        ...     bool(model(torch.ones(8, 4)).isnan().any())
        True
        >>> [strike.kind for strike in faults.struck]
        ['nan_activation']
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        at: Mapping[int, str | Iterable[str]],
        rate: float,
        kinds: tuple[str, ...] | None,
        seed: int,
    ) -> None:
        self._plan = {step: (kind,) if isinstance(kind, str) else tuple(kind) for step, kind in at.items()}
        self._kinds = tuple(kind for kind in KINDS if kind not in FLIPS) if kinds is None else kinds
        for kind in {*self._kinds, *(kind for planned in self._plan.values() for kind in planned)}:
            if kind not in KINDS:
                raise UsageError(f"There is no fault of the kind {kind!r}. There are: {', '.join(KINDS)}.")
        if not 0.0 <= rate <= 1.0:
            raise UsageError(f"rate={rate} must be a chance between 0 and 1, such as 0.02.")
        self._rate = rate
        self._draw = Random(seed)
        self._handles: list[RemovableHandle] = []
        self._modules = [(name, part) for name, part in model.named_modules() if name and not list(part.children())]
        self._weights = [(n, p) for n, p in model.named_parameters() if p.requires_grad and p.is_floating_point()]
        if not self._modules or not self._weights:
            raise UsageError("This model has no part to strike: it needs submodules and trainable parameters.")
        self.struck: list[Strike] = []
        """Every strike so far, oldest first."""
        self.passes = 0
        """Training passes so far."""
        self._for_this_pass: list[RemovableHandle] = []
        self._spoil_output = False
        self._root = [
            model.register_forward_pre_hook(self._before),
            model.register_forward_hook(self._after),
        ]

    def counts(self) -> dict[str, int]:
        """How often each kind struck."""
        return dict(Counter(strike.kind for strike in self.struck))

    def close(self) -> None:
        """Take everything off the model again. What struck a weight stays. Safe to call twice."""
        for handle in (*self._root, *self._for_this_pass, *self._handles):
            handle.remove()
        self._root, self._for_this_pass, self._handles = [], [], []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    # -- one pass of the model

    def _before(self, model: nn.Module, inputs: Any) -> None:
        if rerunning():
            return
        for handle in self._for_this_pass:
            handle.remove()
        self._for_this_pass, self._spoil_output = [], False
        for kind in self._due(sampling=not _trains(model)):
            self._strike(kind)

    def _after(self, model: nn.Module, inputs: Any, output: Any) -> Any:
        """Hooks on modules go with the pass; one on a gradient stays until backward has come by."""
        if rerunning():
            return None
        if _trains(model):
            self.passes += 1
        if self._spoil_output:
            self._spoil_output = False
            return self._with_bad_row(output)
        return None

    def _due(self, *, sampling: bool) -> list[str]:
        """The kinds that strike this pass. What was planned strikes once, also if the pass is run again."""
        planned = self._plan.get(self.passes, ())
        due = [kind for kind in planned if (kind in SAMPLING) == sampling]
        if due:
            self._plan[self.passes] = tuple(kind for kind in planned if kind not in due)
        choices = [kind for kind in self._kinds if (kind in SAMPLING) == sampling]
        if self._rate and choices and self._draw.random() < self._rate:
            due.append(self._draw.choice(choices))
        return due

    def _strike(self, kind: str) -> None:
        if kind in SAMPLING:
            self._spoil_output = True
        elif kind.endswith("_activation"):
            target, module = self._draw.choice(self._modules)
            self._for_this_pass.append(module.register_forward_hook(self._activation_hook(kind, target)))
        elif kind.endswith("_gradient"):
            target, weight = self._draw.choice(self._weights)
            self._spoil_next_gradient(weight, kind, target)
        else:
            target, weight = self._draw.choice(self._weights)
            spoil_weight(kind, weight, self._draw)
            self._note(kind, target)

    def _note(self, kind: str, target: str, step: int | None = None) -> None:
        self.struck.append(Strike(step=self.passes if step is None else step, kind=kind, target=target))

    def _activation_hook(self, kind: str, target: str) -> Callable[[nn.Module, Any, Any], Any]:
        """Spoils one element of what the module puts out, the first time it does."""
        waiting = True

        def hook(module: nn.Module, inputs: Any, output: Any) -> Any:
            nonlocal waiting
            if not waiting or rerunning() or not _has_values(output):
                return None
            waiting = False
            self._note(kind, target)
            return spoilt(output, math.nan if kind == "nan_activation" else math.inf, self._draw)

        return hook

    def _spoil_next_gradient(self, weight: Tensor, kind: str, target: str) -> None:
        change, step = spoil_gradient(kind, self._draw), self.passes

        def hook(gradient: Tensor) -> Tensor:
            if rerunning():
                return gradient
            handle.remove()
            self._note(kind, target, step)
            return change(gradient)

        handle: RemovableHandle = weight.register_hook(hook)  # type: ignore[no-untyped-call]
        self._handles = [*self._handles[-_KEPT:], handle]

    def _with_bad_row(self, output: Any) -> Any:
        """The output, or the logits in it, with one row that is NaN. What is neither is left as it is."""
        logits: Any = output if isinstance(output, Tensor) else getattr(output, "logits", None)
        if not _has_values(logits) or not logits.dim():
            return None
        spoilt_logits = spoilt_row(logits, math.nan, self._draw)
        self._note("nan_logits", "the output")
        if output is logits:
            return spoilt_logits
        output.logits = spoilt_logits
        return output


def _trains(model: nn.Module) -> bool:
    return model.training and torch.is_grad_enabled()


def _has_values(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and value.numel() > 0

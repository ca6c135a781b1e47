"""Two plain callbacks for a transformers Trainer: they look at gradients or at activations, print, and change nothing.

For people who want only this. `sg.attach(trainer)` also refuses what must not be applied and finds out why.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ...detect.tensors.foreign_objects import getattr, hasattr, isinstance
from ...records.errors import UsageError
from ..loops import patching

try:
    from transformers.trainer_callback import TrainerCallback
except ImportError as missing:
    raise UsageError(
        "The monitor callbacks are for a transformers Trainer, and transformers is not installed. "
        "Install it with: pip install 'steadygrad[trainers]'."
    ) from missing

_SHOWN = 8  # names listed under an alarm; the rest is counted


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientReport:
    """What the checked steps since the last report showed. Norms are of the whole gradient, before clipping.

    `num_nan` and `num_inf` count the checked steps since training began whose gradient held a NaN or an infinity;
    such steps are in no mean. `bad` names the parameters of the newest of them, with the word for each.
    """

    step: int
    mean_norm: float | None
    max_norm: float | None
    min_norm: float | None
    num_nan: int
    num_inf: int
    bad: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        rows = [f"[step {self.step}] gradient norms before clipping"]
        rows.append(f"  mean: {_shown(self.mean_norm)}")
        rows.append(f"  max:  {_shown(self.max_norm)}")
        rows.append(f"  min:  {_shown(self.min_norm)}")
        rows.append(f"  NaN count: {self.num_nan}, Inf count: {self.num_inf}")
        return "\n".join(rows)


class GradientMonitorCallback(TrainerCallback):  # type: ignore[misc]
    """Gradient statistics on a schedule, and the names of the parameters whose gradients are not finite.

    Looks before clipping, because clipping spreads one NaN over every gradient. A checked step costs two reductions
    per parameter and one host read; a step that is not checked costs nothing.

    Args:
        check_every_n_steps: look at every n-th step.
        log_every_n_steps: print mean, max and min norm, NaN count and Inf count this often.
        halt_on_nan: stop training at a gradient that is not finite, with the weights from before it.

    Returns:
        A transformers callback: `Trainer(..., callbacks=[sg.GradientMonitorCallback()])`.

    Example:
        >>> callback = sg.GradientMonitorCallback(check_every_n_steps=10, halt_on_nan=True)
        >>> hasattr(callback, "on_pre_optimizer_step")
        True
    """

    def __init__(self, check_every_n_steps: int = 1, log_every_n_steps: int = 10, halt_on_nan: bool = False) -> None:
        self._check_every = _positive("check_every_n_steps", check_every_n_steps)
        self._log_every = _positive("log_every_n_steps", log_every_n_steps)
        self._halt_on_nan = halt_on_nan
        self._handles: list[RemovableHandle] = []
        self._seen: dict[str, Tensor] = {}
        self._order: list[str] = []
        self._norms: list[float] = []
        self._finite_norm = 0.0
        self._num_nan = self._num_inf = 0
        self._bad: tuple[tuple[str, str], ...] = ()
        self._alarmed: tuple[tuple[str, str], ...] = ()
        self.reports: list[GradientReport] = []

    def on_step_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        if (state.global_step + 1) % self._check_every == 0 and model is not None and not self._handles:
            trained = {_plain_name(name): p for name, p in model.named_parameters() if p.requires_grad}
            self._order = list(trained)
            for name, parameter in trained.items():
                self._handles.append(parameter.register_post_accumulate_grad_hook(self._hook(name)))

    def on_pre_optimizer_step(
        self, args: Any, state: Any, control: Any, model: Any = None, optimizer: Any = None, **kwargs: Any
    ) -> None:
        step = state.global_step + 1
        if self._handles:
            self._take_off()
            bad = self._judge(optimizer)
            if bad:
                _say(state, self._alarm(step, bad, refused=_is_guarded(optimizer)))
                if self._halt_on_nan:
                    _drop_gradients(model)
                    control.should_training_stop = True
        if step % self._log_every == 0:
            self._report(state, step)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._take_off()

    def _hook(self, name: str) -> Callable[[Tensor], None]:
        def measure(parameter: Tensor) -> None:
            gradient = parameter.grad
            if gradient is not None:
                values = _dense(gradient)
                # The 2-norm of finite values can overflow; the largest magnitude cannot. Together they tell which.
                two = [torch.linalg.vector_norm(values, order, dtype=_wide(values.dtype)) for order in (2, math.inf)]
                self._seen[name] = torch.stack(two)

        return measure

    def _judge(self, optimizer: Any) -> tuple[tuple[str, str], ...]:
        """The total norm of this step goes into the statistics if it is finite. One host read."""
        found, self._seen = self._seen, {}
        seen = {name: found[name] for name in self._order if name in found}  # backward came by in its own order
        if not seen:
            return ()
        scaler = getattr(optimizer, "scaler", None)
        scale = float(scaler.get_scale()) if scaler is not None and scaler.is_enabled() else 1.0
        device = next(iter(seen.values())).device
        rows = torch.stack([row.to(device, torch.float64) for row in seen.values()]).tolist()
        bad = tuple(
            (n, _kind(norm, largest)) for n, (norm, largest) in zip(seen, rows, strict=True) if not _finite(largest)
        )
        self._finite_norm = math.sqrt(math.fsum(norm * norm for norm, largest in rows if _finite(largest))) / scale
        if bad:
            self._num_nan += any(kind == "NaN" for _, kind in bad)
            self._num_inf += any(kind == "Inf" for _, kind in bad)
            self._bad = bad
        else:
            self._norms.append(self._finite_norm)
        return bad

    def _alarm(self, step: int, bad: tuple[tuple[str, str], ...], *, refused: bool) -> str:
        kinds = sorted({kind for _, kind in bad}, reverse=True)
        rows = [f"[step {step}] {' and '.join(kinds)} in the gradients of {len(bad)} parameter(s)"]
        if bad == self._alarmed and not self._halt_on_nan:
            return f"{rows[0]}, those named before"  # a run that is dead says so at every step
        self._alarmed = bad
        total = "nan" if "NaN" in kinds else "inf"
        rows.append(f"  total norm: {total} ({_shown(self._finite_norm)} over the parameters with finite gradients)")
        rows += [f"  {name} ({kind})" for name, kind in bad[:_SHOWN]]
        if len(bad) > _SHOWN:
            rows.append(f"  and {len(bad) - _SHOWN} more")
        if self._halt_on_nan:
            rows.append("  Training stops here; the weights are those from before this step.")
        elif refused:
            rows.append("  The guard that is attached to this trainer judges this update before it is applied.")
        else:
            rows.append(
                "  This callback only looks: the optimizer is about to apply it. sg.attach(trainer) refuses it."
            )
        return "\n".join(rows)

    def _report(self, state: Any, step: int) -> None:
        norms, self._norms = [norm for norm in self._norms if math.isfinite(norm)], []
        report = GradientReport(
            step=step, mean_norm=math.fsum(norms) / len(norms) if norms else None, max_norm=max(norms, default=None),
            min_norm=min(norms, default=None), num_nan=self._num_nan, num_inf=self._num_inf, bad=self._bad,
        )  # fmt: skip
        self.reports.append(report)
        _say(state, str(report))

    def _take_off(self) -> None:
        while self._handles:
            self._handles.pop().remove()


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationRow:
    """One module's outputs in one checked step: how many elements were not finite, and the rest's magnitude."""

    module: str
    dtype: str
    num_nan: int
    num_inf: int
    absmax: float
    mean_abs: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationReport:
    """All modules of one checked step, the largest magnitude first and those with NaN or Inf before all."""

    step: int
    rows: tuple[ActivationRow, ...] = field(default=())

    @property
    def num_nan(self) -> int:
        return sum(row.num_nan for row in self.rows)

    @property
    def num_inf(self) -> int:
        return sum(row.num_inf for row in self.rows)

    def __str__(self) -> str:
        if not self.rows:
            return f"[step {self.step}] no activations were seen. Hooks do not reach into a compiled model."
        lines = [f"[step {self.step}] activations of {len(self.rows)} modules"]
        lines.append(f"  NaN count: {self.num_nan}, Inf count: {self.num_inf}")
        for row in self.rows[:_SHOWN]:
            bad = f", {row.num_nan} NaN, {row.num_inf} Inf" if row.num_nan or row.num_inf else ""
            lines.append(f"  {row.module or 'model'} ({row.dtype}): max {row.absmax:.6g}, mean {row.mean_abs:.6g}{bad}")
        return "\n".join(lines)


class ActivationMonitorCallback(TrainerCallback):  # type: ignore[misc]
    """Statistics of what every module puts out in training, on a schedule: largest and mean magnitude, NaN and Inf.

    Hooks are on the model for the checked step only, and look at forward passes that will be differentiated: not at
    generation or evaluation. A checked step costs a few reductions a module and one host read.

    Args:
        check_every_n_steps: look at every n-th step and print it.

    Returns:
        A transformers callback: `Trainer(..., callbacks=[sg.ActivationMonitorCallback()])`.

    Example:
        >>> callback = sg.ActivationMonitorCallback(check_every_n_steps=100)
        >>> hasattr(callback, "on_step_end")
        True
    """

    def __init__(self, check_every_n_steps: int = 50) -> None:
        self._check_every = _positive("check_every_n_steps", check_every_n_steps)
        self._handles: list[RemovableHandle] = []
        self._seen: dict[tuple[str, torch.dtype], Tensor] = {}
        self.reports: list[ActivationReport] = []

    def on_step_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        if (state.global_step + 1) % self._check_every == 0 and model is not None and not self._handles:
            for name, module in model.named_modules():
                self._handles.append(module.register_forward_hook(self._hook(_plain_name(name))))

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not self._handles:
            return
        self._take_off()
        seen, self._seen = self._seen, {}
        report = ActivationReport(step=state.global_step + 1, rows=_rows_of(seen))
        self.reports.append(report)
        _say(state, str(report))

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._take_off()

    def _hook(self, name: str) -> Callable[[nn.Module, Any, Any], None]:
        def measure(module: nn.Module, inputs: Any, output: Any) -> None:
            if not torch.is_grad_enabled():
                return
            with torch.no_grad():
                for tensor in _floating(output):
                    row, key = _measure(tensor.detach()), (name, tensor.dtype)
                    known = self._seen.get(key)
                    self._seen[key] = row if known is None else _joined(known, row)

        return measure

    def _take_off(self) -> None:
        while self._handles:
            self._handles.pop().remove()


def _measure(tensor: Tensor) -> Tensor:
    """Counts of NaN and Inf, largest finite magnitude, sum of finite magnitudes, number of finite; on the device."""
    values = _dense(tensor)
    values = values.to(_wide(values.dtype))
    finite = torch.isfinite(values)
    size = torch.where(finite, values.abs(), 0.0)
    parts = (torch.isnan(values).sum(), torch.isinf(values).sum(), size.max(), size.sum(), finite.sum())
    return torch.stack([part.double() for part in parts])


def _joined(one: Tensor, two: Tensor) -> Tensor:
    both = one + two.to(one.device)
    both[2] = torch.maximum(one[2], two[2].to(one.device))
    return both


def _rows_of(seen: Mapping[tuple[str, torch.dtype], Tensor]) -> tuple[ActivationRow, ...]:
    if not seen:
        return ()
    device = next(iter(seen.values())).device
    table = torch.stack([row.to(device) for row in seen.values()]).tolist()
    rows = [
        ActivationRow(
            module=name, dtype=str(dtype).removeprefix("torch."), num_nan=int(nan), num_inf=int(inf), absmax=largest,
            mean_abs=total / count if count else 0.0,
        )
        for (name, dtype), (nan, inf, largest, total, count) in zip(seen, table, strict=True)
    ]  # fmt: skip
    return tuple(sorted(rows, key=lambda row: (row.num_nan + row.num_inf == 0, -row.absmax)))


def _floating(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        if output.is_floating_point() and output.numel():
            yield output
    elif isinstance(output, Mapping):
        for value in output.values():
            yield from _floating(value)
    elif isinstance(output, list | tuple):
        for value in output:
            yield from _floating(value)


def _dense(tensor: Tensor) -> Tensor:
    local: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local.coalesce().values() if local.is_sparse else local


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _drop_gradients(model: Any) -> None:
    """An optimizer passes over a parameter without a gradient, so this update changes nothing."""
    for parameter in model.parameters() if model is not None else ():
        parameter.grad = None


def _is_guarded(optimizer: Any) -> bool:
    """Whether `sg.attach` stands before this optimizer's step: then the function on the object is one of ours."""
    step = getattr(optimizer, "__dict__", {}).get("step")
    return getattr(step, "__globals__", None) is vars(patching)


def _kind(norm: float, largest: float) -> str:
    return "NaN" if math.isnan(norm) or math.isnan(largest) else "Inf"


def _finite(value: float) -> bool:
    return math.isfinite(value)


def _plain_name(name: str) -> str:
    return name.replace("_orig_mod.", "").removeprefix("module.")


def _shown(value: float | None) -> str:
    return "none checked" if value is None else f"{value:.6f}"


def _say(state: Any, text: str) -> None:
    """Print on the main process only; every rank has the same gradients after the reduction."""
    if getattr(state, "is_world_process_zero", True):
        print(text, flush=True)


def _positive(name: str, value: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UsageError(f"{name} counts steps and must be a whole number of at least 1; got {value!r}.")
    return value

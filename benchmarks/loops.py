"""The same training step, watched in every way people watch it today, and by us."""

from __future__ import annotations

import math
import tempfile
from typing import Any

import torch

import steadygrad as sg

from .workloads import Workload, build, loss_of


class Loop:
    """One training loop over one fixed batch. `slow` ones are run for fewer steps."""

    title = ""
    slow = False
    compiles = True

    def __init__(self, work: Workload, device: str, compiled: bool) -> None:
        self.device = device
        self.model, self.optimizer, self.ids = build(work, device)
        self.parameters = list(self.model.parameters())
        self.forward: Any = torch.compile(self.model) if compiled else self.model
        self.prepare()

    def prepare(self) -> None: ...

    def loss(self) -> torch.Tensor:
        return loss_of(self.forward, self.ids)

    def step(self) -> None:
        raise NotImplementedError

    def finish(self, norm: float | None = 1.0) -> None:
        if norm is not None:
            torch.nn.utils.clip_grad_norm_(self.parameters, norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def close(self) -> None: ...


class Bare(Loop):
    title = "bare loop, no clipping"

    def step(self) -> None:
        self.loss().backward()
        self.finish(None)


class Clip(Loop):
    title = "clip_grad_norm_ (the reference)"

    def step(self) -> None:
        self.loss().backward()
        self.finish()


class ClipItem(Loop):
    title = "clip and read loss and norm with .item()"

    def step(self) -> None:
        loss = self.loss()
        if not math.isfinite(loss.item()):
            return
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        if math.isfinite(norm.item()):
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


class PerParameter(Loop):
    title = "isnan/isinf and norm of every parameter"
    slow = True

    def step(self) -> None:
        self.loss().backward()
        self.seen = []
        for parameter in self.parameters:
            grad = parameter.grad
            assert grad is not None
            bad = bool(torch.isnan(grad).any()) or bool(torch.isinf(grad).any())
            self.seen.append((bad, grad.norm().item()))
        self.finish()


class ActivationHooks(Loop):
    title = "activation statistics by forward hooks"
    compiles = False

    def prepare(self) -> None:
        self.seen: dict[str, Any] = {}
        for name, module in self.model.named_modules():
            if not list(module.children()):
                module.register_forward_hook(self._hook(name))

    def _hook(self, name: str) -> Any:
        def look(_module: Any, _inputs: Any, output: torch.Tensor) -> None:
            value = output.detach()
            self.seen[name] = (value.abs().amax(), value.float().mean(), (~torch.isfinite(value)).sum())

        return look

    def step(self) -> None:
        self.loss().backward()
        self.finish()


class Anomaly(Loop):
    title = "torch.autograd.detect_anomaly"
    slow = True
    compiles = False

    def step(self) -> None:
        with torch.autograd.detect_anomaly(check_nan=True):
            self.loss().backward()
            self.finish()


class HuggingFaceDebug(Loop):
    title = "transformers DebugUnderflowOverflow"
    slow = True
    compiles = False

    def prepare(self) -> None:
        from transformers.debug_utils import DebugUnderflowOverflow

        self.debug = DebugUnderflowOverflow(self.model)

    def step(self) -> None:
        self.loss().backward()
        self.finish()


class ScalerFp16(Loop):
    title = "fp16 with GradScaler, unscale_, clip"

    def prepare(self) -> None:
        self.scaler = torch.amp.GradScaler(self.device, init_scale=1024.0)

    def step(self) -> None:
        loss = loss_of(self.forward, self.ids, torch.float16)
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)


class Guarded(Loop):
    title = "steadygrad, exact clip"
    options: dict[str, Any] = {}

    def prepare(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.guard = sg.Guard(
            self.forward,
            self.optimizer,
            lambda model, ids: loss_of(model, ids),
            max_grad_norm=1.0,
            run_dir=self.folder.name + "/run",
            **self.options,
        )

    def step(self) -> None:
        self.guard.step(self.ids)

    def close(self) -> None:
        self.guard.close()
        self.folder.cleanup()


class GuardedFolded(Guarded):
    title = "steadygrad, clip folded into the optimizer"
    options = {"clip": "folded"}


class GuardedNoSnapshots(Guarded):
    title = "steadygrad, exact clip, no snapshots"
    options = {"snapshots": "off"}


LOOPS: dict[str, type[Loop]] = {
    "clip": Clip,
    "guard": Guarded,
    "guard_folded": GuardedFolded,
    "guard_no_snapshots": GuardedNoSnapshots,
    "bare": Bare,
    "clip_item": ClipItem,
    "scaler_fp16": ScalerFp16,
    "per_parameter": PerParameter,
    "activation_hooks": ActivationHooks,
    "anomaly": Anomaly,
    "hf_debug": HuggingFaceDebug,
}
FAST = ("clip", "guard", "guard_folded", "guard_no_snapshots", "bare", "clip_item", "scaler_fp16")

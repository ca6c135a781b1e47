"""What a training of the guarantee tests is made of: a model, an optimizer, data with faults, and the plain loop.

Everything here is used in this process, in a program under `steady run` and on every rank, so a scenario and a result
are plain data that can be sent as JSON.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from keeper import Keeper, Outside
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

ROWS, WIDTH = 4, 8
HOSTILE = "<script>alert(1)</script>\x1b[2J"
"""A module's name that a reader of the run directory must escape on a page and on a terminal."""


@dataclass(frozen=True)
class Scenario:
    """One training. The keys of `faults` and `changes` are batch numbers.

    Faults: nan_input, inf_loss (an infinite target), nan_gradient (the loss is finite), zero_column (a gradient that is
    exactly zero, for optimizers that divide by it), spike (a target 1000 times too large), once (a NaN that does not
    come again when the batch is run again).
    Changes, made by the user before the batch: unfreeze, add_group, lr_jump, nan_weight.
    """

    steps: int = 12
    optimizer: str = "adamw"
    rate: float = 1.0
    """What the optimizer's learning rate is multiplied by."""
    faults: dict[int, str] = field(default_factory=dict)
    changes: dict[int, str] = field(default_factory=dict)
    left_out: tuple[int, ...] = ()
    accumulate: int = 1
    clip: float | None = 1.0
    scheduler: bool = True
    ema: bool = False
    scaler: bool = False
    model: str = "net"  # or half (float16 weights), or linear
    augment: bool = False
    skips_itself: bool = False
    keeps: str = ""
    """What the model holds beside its weights: "inside" what can be restored, "outside" also what cannot."""
    """Whether the model counts, collects and draws for itself at each forward."""
    hostile_names: bool = False
    give_model: bool = True
    diagnose: str = "off"
    count_reads: bool = False
    breaks: str = ""
    sharding: str = "ddp"  # of ranks: ddp or fsdp2
    fault_rank: int | None = None
    catch: bool = True
    options: dict[str, Any] = field(default_factory=dict)

    def but(self, **changes: Any) -> Scenario:
        return replace(self, **changes)

    def without_faults(self, *, whole_windows: bool = True) -> Scenario:
        """The training that never had the bad batches, or the accumulation windows that they are in."""
        bad = set(self.faults)
        if whole_windows:
            windows = {index // self.accumulate for index in bad}
            bad = {index for index in range(self.steps) if index // self.accumulate in windows}
        return self.but(left_out=tuple(sorted(bad)))

    @staticmethod
    def load(plain: dict[str, Any]) -> Scenario:
        numbered = {name: {int(k): v for k, v in plain[name].items()} for name in ("faults", "changes")}
        return Scenario(**{**plain, **numbered, "left_out": tuple(plain["left_out"])})


@dataclass
class Result:
    """How a training ended. `state` maps the name of everything that training moves to a hash of its bits."""

    state: dict[str, str] = field(default_factory=dict)
    non_finite: list[str] = field(default_factory=list)
    drawn: list[str] = field(default_factory=list)
    kept: list[Any] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    incidents: list[dict[str, Any]] = field(default_factory=list)
    log: str = ""
    stdout: str = ""
    warnings: list[str] = field(default_factory=list)
    error: str | None = None
    message: str = ""
    exit: int = 0
    reads: list[int] = field(default_factory=list)
    called: list[str] = field(default_factory=list)
    struck: bool = False
    examining: bool = False
    """Whether a diagnosis was under way when the fault struck."""
    hooks: str = ""
    run_dir: str = ""
    others: list[Result] = field(default_factory=list)

    @property
    def said(self) -> str:
        """Everything that was shown to the user."""
        return f"{self.log}\n{self.stdout}\n{self.message}"

    @staticmethod
    def load(plain: dict[str, Any]) -> Result:
        return Result(**{**plain, "others": [Result.load(other) for other in plain.get("others", [])]})

    def to_json(self) -> dict[str, Any]:
        return json.loads(json.dumps(asdict(self), default=str))


def differing(one: Result, other: Result, *, leaving_out: tuple[str, ...] = ()) -> list[str]:
    """Names of the parts of two final states that are not equal bit for bit."""
    assert len(one.state) > 5
    names = sorted(set(one.state) | set(other.state))
    return [n for n in names if one.state.get(n) != other.state.get(n) and not n.startswith(leaving_out or ("\0",))]


# -- the model


class Net(nn.Module):
    """Moves all that a forward can move: running statistics, dropout, random numbers of three generators."""

    def __init__(self, *, norm: str = "batch", hostile: bool = False, keeps: str = "") -> None:
        super().__init__()
        self.keeper = {"": lambda: None, "inside": Keeper, "outside": Outside}[keeps]()
        self.first = nn.Linear(WIDTH, 16)
        self.norm = nn.BatchNorm1d(16) if norm == "batch" else nn.LayerNorm(16)
        self.drop = nn.Dropout(0.25)
        self.last = nn.Linear(16, 1)
        self.hostile = HOSTILE if hostile else ""
        if hostile:
            self.add_module(HOSTILE.replace(".", ""), nn.Linear(1, 1))

    def forward(self, x: Tensor, y: Tensor, trap: Tensor) -> dict[str, Tensor]:
        if self.keeper is not None:
            self.keeper.note()
        x = x * (1 + 0.01 * random.random()) + 0.01 * float(np.random.rand())
        out = self.last(self.drop(torch.relu(self.norm(self.first(x)))))
        if self.hostile:
            out = self.get_submodule(self.hostile.replace(".", ""))(out)
        return {"loss": fit(out, y, trap)}


class Linear(nn.Module):
    """No gradient is exactly zero unless its input is. In float16 gradients are large enough for AdamW's squares."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, 1, dtype=dtype)

    def forward(self, x: Tensor, y: Tensor, trap: Tensor) -> dict[str, Tensor]:
        out = self.first(x.to(self.first.weight.dtype)).float()
        return {"loss": fit(out, y, trap) + 8 * out.abs().mean() + 8 * out.mean()}


_STRUCK_ONCE: set[int] = set()


def fit(out: Tensor, y: Tensor, trap: Tensor) -> Tensor:
    """The loss. `trap` is 0, or 1 for a gradient that is NaN under a finite loss, or 2 + a number for a NaN that comes
    only the first time that batch is seen."""
    loss = (out - y).pow(2).mean()
    kind = float(trap[0])
    if kind == 1:
        loss = loss + torch.sqrt((out * 0.0).sum() ** 2)
    if kind >= 2 and int(kind) not in _STRUCK_ONCE:
        _STRUCK_ONCE.add(int(kind))
        loss = loss * math.nan
    return loss


# -- optimizers


def run_closure(closure: Any) -> None:
    if closure is not None:
        with torch.enable_grad():
            closure()


class ReadsGroups(torch.optim.Optimizer):
    """Reads `param_groups[0]` in `step` and keeps a count there, as schedule-free optimizers do."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr, "k": 0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        run_closure(closure)
        count = self.param_groups[0]["k"] = self.param_groups[0]["k"] + 1
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    mean = self.state[p].setdefault("mean", torch.zeros_like(p))
                    mean.lerp_(p.grad, 1.0 / min(count, 10))
                    p.sub_(mean, alpha=group["lr"])


class Divides(torch.optim.Optimizer):
    """Divides by the size of each gradient: where one is exactly zero the update itself makes a NaN."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        run_closure(closure)
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self.state[p].setdefault("count", torch.zeros(())).add_(1)
                    p.sub_(p.grad / p.grad.abs(), alpha=group["lr"])


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2, foreach=False),
    "adamw_foreach": lambda p: torch.optim.AdamW(p, lr=1e-2, foreach=True),
    "adamw_fused": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2),
    "reads_groups": lambda p: ReadsGroups(p, lr=1e-2),
    "divides": lambda p: Divides(p, lr=1e-3),
}
FORMS = ("sgd", "adamw", "adamw_foreach", "adamw_fused", "adagrad", "reads_groups")
SHORT = ("adamw", "adamw_fused", "reads_groups")
"""Those of the short suite; the long one has all."""


# -- data


class Data(torch.utils.data.Dataset[dict[str, Tensor]]):
    """Rows of a training in order. Remembers what was drawn, so that a batch drawn twice is seen."""

    def __init__(self, scenario: Scenario, *, rank: int = 0, leave_out: bool = True) -> None:
        self.batches = [make_batch(scenario, index, rank) for index in range(scenario.steps)]
        if leave_out:
            self.batches = [batch for i, batch in enumerate(self.batches) if i not in scenario.left_out]
        self.augment = scenario.augment
        self.drawn: list[str] = []
        self.on_draw: Callable[[], None] = lambda: None

    def __len__(self) -> int:
        return len(self.batches) * ROWS

    def draw(self, index: int) -> dict[str, Tensor]:
        """A whole batch, for a loop that draws batches."""
        self.on_draw()
        batch = {name: value.clone() for name, value in self.batches[index].items()}
        noise = torch.randn(ROWS, WIDTH) if self.augment else None
        self.drawn.append(f"{index}:{digest(noise)}" if noise is not None else str(index))
        return batch if noise is None else {**batch, "x": batch["x"] + 0.01 * noise}

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        if row >= len(self):
            raise IndexError(row)
        if row % ROWS == 0:
            self.on_draw()
        found = {name: value[row % ROWS].clone() for name, value in self.batches[row // ROWS].items()}
        noise = torch.randn(WIDTH) if self.augment else None
        self.drawn.append(f"{row}:{digest(noise)}" if noise is not None else str(row))
        return found if noise is None else {**found, "x": found["x"] + 0.01 * noise}


def make_batch(scenario: Scenario, index: int, rank: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1000 * (rank + 1) + index)
    x = torch.randn(ROWS, WIDTH, generator=generator)
    if scenario.model != "net":
        x = x.abs() + 0.5  # no feature's gradient vanishes by itself
    y = x.sum(1, keepdim=True).tanh() + 0.1 * torch.randn(ROWS, 1, generator=generator)
    trap = torch.zeros(ROWS)
    fault = scenario.faults.get(index)
    if scenario.fault_rank is not None and rank != scenario.fault_rank:
        fault = None
    if fault == "nan_input":
        x[1, 2] = math.nan
    elif fault == "inf_loss":
        y[2, 0] = math.inf
    elif fault == "nan_gradient":
        trap[:] = 1.0
    elif fault == "zero_column":
        x[:, 0] = 0.0
    elif fault == "spike":
        y = y * 1000.0
    elif fault == "once":
        trap[:] = 2.0 + index
    elif fault is not None:
        raise ValueError(fault)
    return {"x": x, "y": y, "trap": trap}


# -- one training


@dataclass
class Made:
    """All that a training needs, before anything guards it."""

    scenario: Scenario
    model: nn.Module
    optimizer: torch.optim.Optimizer
    scheduler: Any
    ema: AveragedModel | None
    scaler: Any
    data: Data
    late: list[nn.Parameter]
    """Parameters that a change adds to the optimizer later."""


def make(scenario: Scenario, *, rank: int = 0, leave_out: bool = True, wrap: Any = None, norm: str = "batch") -> Made:
    seed_all(0)
    model: nn.Module = Net(norm=norm, hostile=scenario.hostile_names, keeps=scenario.keeps)
    if scenario.model != "net":
        model = Linear({"half": torch.float16, "linear": torch.float32}[scenario.model])
    if wrap is not None:
        model = wrap(model)
    late: list[nn.Parameter] = []
    if {"unfreeze", "add_group"} & set(scenario.changes.values()):
        first_layer(model).requires_grad_(False)
        late = list(first_layer(model).parameters()) if "add_group" in scenario.changes.values() else []
    kept = [p for p in model.parameters() if not any(p is other for other in late)]
    optimizer = OPTIMIZERS[scenario.optimizer](kept)
    for group in optimizer.param_groups:
        group["lr"] = group.get("initial_lr", group["lr"]) * scenario.rate
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.9) if scenario.scheduler else None
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9)) if scenario.ema else None
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0, growth_interval=4) if scenario.scaler else None
    _STRUCK_ONCE.clear()
    data = Data(scenario, rank=rank, leave_out=leave_out)
    seed_all(7 + rank)
    return Made(scenario, model, optimizer, scheduler, ema, scaler, data, late)


def first_layer(model: Any) -> nn.Module:
    layer: nn.Module = getattr(model, "module", model).first
    return layer


def seed_all(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


def change(it: Made, index: int) -> None:
    """What the user does to the training before this batch."""
    what = it.scenario.changes.get(index)
    if what == "unfreeze":
        first_layer(it.model).requires_grad_(True)
    elif what == "add_group":
        for parameter in it.late:
            parameter.requires_grad_(True)
        it.optimizer.add_param_group({"params": it.late, "lr": 5e-3})
    elif what == "lr_jump":
        for group in it.optimizer.param_groups:
            group["lr"] = group["lr"] * 20.0
    elif what == "nan_weight":
        weight = next(p for p in it.model.parameters() if p.requires_grad)
        with torch.no_grad():
            local(weight.data).view(-1)[0] = math.nan
    elif what is not None:
        raise ValueError(what)


def plain_loop(it: Made) -> None:
    """The loop that people write."""
    scenario, micro = it.scenario, 0
    for index in range(scenario.steps):
        batch = it.data.draw(index)
        change(it, index)
        if index in scenario.left_out:
            continue
        loss = it.model(**batch)["loss"]
        if scenario.skips_itself and not torch.isfinite(loss):
            continue
        part = loss / scenario.accumulate if scenario.accumulate > 1 else loss
        (it.scaler.scale(part) if it.scaler is not None else part).backward()
        micro += 1
        if micro % scenario.accumulate:
            continue
        if it.scaler is not None:
            it.scaler.unscale_(it.optimizer)
        if scenario.clip is not None:
            torch.nn.utils.clip_grad_norm_(it.model.parameters(), scenario.clip)
        if it.scaler is not None:
            it.scaler.step(it.optimizer)
            it.scaler.update()
        else:
            it.optimizer.step()
        if it.scheduler is not None:
            it.scheduler.step()
        if it.ema is not None:
            it.ema.update_parameters(it.model)
        it.optimizer.zero_grad()


# -- what is left at the end


def local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def digest(tensor: Tensor) -> str:
    data = local(tensor.detach()).cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return hashlib.sha256(data).hexdigest()[:12]


def hash_of(value: Any) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:12]


def collect(it: Made, result: Result) -> Result:
    """Fill in the final state: each part that training moves, as a hash, and the names of what is not finite."""
    tensors: dict[str, Tensor] = {f"weight.{n}": p for n, p in it.model.named_parameters()}
    tensors |= {f"buffer.{n}": b for n, b in it.model.named_buffers()}
    if it.ema is not None:
        tensors |= {f"ema.{n}": value for n, value in it.ema.state_dict().items()}
    for place, parameter in enumerate(p for group in it.optimizer.param_groups for p in group["params"]):
        for key, value in it.optimizer.state.get(parameter, {}).items():
            tensors[f"optimizer.{place}.{key}"] = value if isinstance(value, Tensor) else torch.tensor(float(value))
    result.state = {name: digest(value) for name, value in tensors.items()}
    result.non_finite = [
        name for name, value in tensors.items() if not torch.isfinite(local(value.detach()).float()).all()
    ]
    groups = [{k: v for k, v in group.items() if k != "params"} for group in it.optimizer.param_groups]
    result.state["optimizer.groups"] = repr(groups)
    if it.scheduler is not None:
        held = {k: v for k, v in it.scheduler.state_dict().items() if isinstance(v, int | float | list)}
        # `_step_count` and its relatives differ by how often a framework asks; what they lead to is in these two.
        result.state["scheduler"] = repr({k: held[k] for k in ("last_epoch", "_last_lr") if k in held})
    if it.scaler is not None:
        result.state["scaler"] = repr(it.scaler.state_dict())
    result.state["rng.torch"] = digest(torch.get_rng_state())
    result.state["rng.python"] = hash_of(random.getstate())
    numpy_state = np.random.get_state(legacy=False)["state"]
    result.state["rng.numpy"] = hash_of((numpy_state["key"].tolist(), numpy_state["pos"]))
    result.drawn = list(it.data.drawn)
    keeper = getattr(getattr(it.model, "module", it.model), "keeper", None)
    result.kept = keeper.state() if keeper is not None else []
    result.hooks = hooks_of(it)
    return result


def hooks_of(it: Made) -> str:
    """Hooks, classes and replaced methods of the user's objects, as text."""
    modules = {name: hooks_on(module) for name, module in it.model.named_modules()}
    others = {
        type(o).__name__: (*hooks_on(o), *replaced_on(o)) for o in (it.optimizer, it.scheduler, it.ema, it.scaler)
    }
    gradients = [len(p._backward_hooks or ()) for p in it.model.parameters()]
    return repr((modules, others, gradients))


def hooks_on(thing: Any) -> list[str]:
    """The hook tables of an object that are not empty."""
    return [f"{name} {len(value)}" for name, value in vars(thing).items() if "hook" in name and value] if thing else []


def replaced_on(thing: Any) -> list[str]:
    """The methods of its class that an object has of its own."""
    return [name for name in vars(thing) if callable(getattr(type(thing), name, None))] if thing else []


@contextlib.contextmanager
def hearing(result: Result) -> Iterator[None]:
    """Keeps what the package logs, beside whatever else listens."""

    class Keeper(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            result.log += record.getMessage() + "\n"

    logger, keeper = logging.getLogger("steadygrad"), Keeper()
    logger.addHandler(keeper)
    try:
        yield
    finally:
        logger.removeHandler(keeper)


def ended(result: Result, error: BaseException) -> None:
    result.error, result.message = type(error).__name__, str(error)


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, default=str), encoding="utf-8")

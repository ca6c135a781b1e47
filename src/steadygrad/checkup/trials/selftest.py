"""The self-test: one forward and backward, then ten steps, and a verdict. Nothing of it remains.

    result = sg.selftest(model, optimizer, loss_fn, batches)
    print(result.verdict, [check.detail for check in result.checks if check.outcome != "pass"])

It answers what a run of an hour would answer too late: is the loss a number, does every weight that shall learn get a
gradient and move, do loss and norms stay finite, does the loss fall. Model, optimizer, gradients and random numbers are
the same bits afterwards (`borrowed_objects.py`); batches are drawn from a fresh iterator.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_, get_total_norm
from torch.optim import Optimizer

from ...detect.graph.rules import vanishing_gradient
from ...detect.graph.rules.vanishing_gradient import GradientSize
from ...detect.graph.run_graph_rules import Confirmed, examine_graph, examine_setup, layers_by_depth
from ...engine.fault_barrier import UserCodeError
from ...engine.state.batch_buffer import pristine
from ...engine.state.rng import RngState, put_rng, take_rng
from ...engine.step.user_step import PRECISIONS, named_terms
from ...records import Finding
from ...records.checks.checkup import Advice, Level
from ...records.checks.selftest import Selftest, SelftestStep
from ...records.errors import UsageError
from ..live_objects import measure
from ..rules import judges_of_setup
from .borrowed_objects import borrowed
from .first_batch_probe import LentStep, probe_batch
from .module_hooks import CrossEntropies, tensors_in
from .selftest_verdict import SelftestTrial, judge

HALF = {torch.float16, torch.bfloat16}
WARM_UP = 100
"""A rate that starts at zero is raised as a warm-up of so many steps would."""
LossFn = Callable[[nn.Module, Any], Any]


def selftest(
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer],
    loss_fn: LossFn,
    batches: Iterable[Any],
    *,
    steps: int = 10,
    max_grad_norm: float | None = None,
    precision: str = "fp32",
) -> Selftest:
    """Run the set-up for a few steps and judge it. The caller's objects are bit-identical afterwards.

    Args:
        model: the module to train, in the mode it shall train in.
        optimizer: a torch optimizer, or several.
        loss_fn: `loss_fn(model, batch)` returns a scalar or a mapping with "loss", as for a Guard.
        batches: any iterable; the first `steps` are used, again from the start if there are fewer.
        steps: how many steps after the first forward and backward.
        max_grad_norm: clip as the run will.
        precision: "fp32", "bf16" or "fp16", by autocast, the last with a loss scale.

    Returns:
        A Selftest: `fit`, and one judgement for each thing that was checked.

    Example:
        >>> model = torch.nn.Linear(4, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        >>> data = [torch.ones(8, 4)]
        >>> sg.selftest(model, optimizer, lambda model, batch: model(batch).pow(2).mean(), data).fit
        True
    """
    optimizers: list[Optimizer] = [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer or ())
    _check_arguments(model, optimizers, loss_fn, steps, precision)
    trial = SelftestTrial(precision=precision, asked_for=steps)
    trial.advice = tuple(_advice(model, optimizers, precision))
    if precision == "fp32" and (half := {p.dtype for p in model.parameters() if p.requires_grad} & HALF):
        trial.precision = f"the {' and '.join(sorted(str(d).removeprefix('torch.') for d in half))} of its weights"
    with borrowed(model, optimizers, loss_fn) as lent:
        drawn = _drawn(batches, steps)
        probed = probe_batch(LentStep(model, optimizers, loss_fn, drawn[0]))
        trial.silent = [*examine_setup(model, optimizers), *probed.findings]
        bench = SelftestRunner(model, optimizers, loss_fn, precision, max_grad_norm)
        try:
            bench.first_pass(drawn[0], trial, again=lent.put_back)
            rng = take_rng()
            bench.train(drawn, trial)
            trial.idle = bench.idle(drawn[0], {*trial.without_gradient, *trial.zero_gradient, *trial.unmoved})
            trial.loss_afterwards = bench.loss_again(drawn[0], rng)
            known = {finding.code for finding in trial.silent}
            trial.silent += [finding for finding in bench.silent if finding.code not in known]
        except Exception as error:  # whatever the user's code raises is the answer
            original = error.original if isinstance(error, UserCodeError) else error
            trial.raised = f"{type(original).__name__}: {original}"
    trial.unreturnable = lent.unreturnable
    return judge(trial)


def _advice(model: nn.Module, optimizers: list[Optimizer], precision: str) -> Iterator[Advice]:
    """What the doctor says of these objects, to name the cause if a check fails. A scaler is used where one is due."""
    setup = measure(model, optimizers, precision=precision, guarded=True)
    for rule in judges_of_setup():
        yield from (each for each in rule.of_setup(setup) if each.level is not Level.NOTE)


def _check_arguments(model: Any, optimizers: list[Any], loss_fn: Any, steps: int, precision: str) -> None:
    if not isinstance(model, nn.Module):
        raise UsageError(f"sg.selftest needs a torch.nn.Module as model, got {type(model).__name__}.")
    if not optimizers or not all(isinstance(each, Optimizer) for each in optimizers):
        raise UsageError("sg.selftest needs a torch.optim.Optimizer, or a list of them.")
    if not callable(loss_fn):
        raise UsageError("sg.selftest needs loss_fn(model, batch), which returns the loss.")
    if steps < 1 or precision not in PRECISIONS:
        raise UsageError(f"sg.selftest takes steps of 1 and more and a precision among {', '.join(PRECISIONS)}.")


def _drawn(batches: Iterable[Any], steps: int) -> list[Any]:
    """The first so many batches, from the start again where there are fewer. Iterating a loader draws random numbers,
    so this happens where they are restored."""
    found = list(itertools.islice(iter(batches), steps))
    if not found:
        raise UsageError("There are no batches to test with.")
    return list(itertools.islice(itertools.cycle(found), steps))


class SelftestRunner:
    """Runs steps as a plain loop would. Reads a few numbers on the host each step; it is a test, not a run."""

    def __init__(
        self,
        model: nn.Module,
        optimizers: list[Optimizer],
        loss_fn: LossFn,
        precision: str,
        max_grad_norm: float | None,
    ) -> None:
        self.model, self.optimizers, self.loss_fn = model, optimizers, loss_fn
        self.max_grad_norm, self.dtype = max_grad_norm, PRECISIONS[precision]
        self.named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        device = next((p.device.type for _, p in self.named), "cpu")
        self.device = device
        self.precision = precision
        self._confirmed = Confirmed()
        self.silent: list[Finding] = []
        """Silent errors that the steps showed."""

    def _autocast(self) -> AbstractContextManager[Any]:
        return nullcontext() if self.dtype is None else torch.autocast(self.device, dtype=self.dtype)

    def _scaler(self) -> Any:
        return torch.amp.GradScaler(self.device) if self.precision == "fp16" else None

    def _loss(self, batch: Any) -> Tensor:
        with self._autocast():
            answer = self.loss_fn(self.model, pristine(batch, clone=True))
        if answer is None:
            raise UsageError("loss_fn returned None for a batch of the self-test: give it batches it trains on.")
        return named_terms(answer)["loss"]

    def _zero_grad(self) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        for parameter in self.model.parameters():
            parameter.grad = None

    def first_pass(self, batch: Any, trial: SelftestTrial, *, again: Callable[[], None]) -> None:
        """One forward and backward, twice from the same state: gradients, and whether the set-up repeats itself."""
        seen: list[tuple[float, list[Tensor | None]]] = []
        for _ in range(2):
            self._zero_grad()
            with CrossEntropies() as terms:
                loss = self._loss(batch)
            loss.backward()  # type: ignore[no-untyped-call]
            seen.append((float(loss.detach()), [p.grad for _, p in self.named]))
            again()
        trial.first_loss, gradients = seen[0]
        trial.cross_entropy, trial.num_classes = terms.value, terms.classes
        trial.num_parameters = sum(p.numel() for p in self.model.parameters())
        trial.num_trainable = sum(p.numel() for _, p in self.named)
        trial.num_tensors = len(self.named)
        pairs = list(zip((name for name, _ in self.named), gradients, strict=True))
        trial.without_gradient = [name for name, grad in pairs if grad is None]
        given = [(name, grad) for name, grad in pairs if grad is not None]
        trial.bad_gradient = [name for name, grad in given if not bool(torch.isfinite(_dense(grad)).all())]
        trial.zero_gradient = [name for name, grad in given if not bool(_dense(grad).any())]
        held = {id(p) for optimizer in self.optimizers for group in optimizer.param_groups for p in group["params"]}
        trial.not_in_optimizer = [name for name, p in self.named if id(p) not in held]
        trial.repeats = _same(seen[0], seen[1])

    def train(self, batches: list[Any], trial: SelftestTrial) -> None:
        """The steps; ends at the first that is not finite."""
        scaler = self._scaler()
        trial.warms_up = self._starts_at_zero()
        before = [p.detach().clone() for _, p in self.named]
        for number, batch in enumerate(batches, start=1):
            for group in trial.warms_up:
                group["lr"] = group["initial_lr"] * number / WARM_UP
            step = self._step(number, batch, scaler)
            trial.steps.append(step)
            # An adapter whose other half starts at zero gets its first gradient in the second step.
            still = {name for name, p in self.named if p.grad is None or not bool(_dense(p.grad).any())}
            trial.zero_gradient = [name for name in trial.zero_gradient if name in still]
            bad = [name for name, p in self.named if not bool(torch.isfinite(p).all())]
            if bad:
                trial.bad_weights, trial.bad_weights_step = bad, number
            if bad or not math.isfinite(step.loss) or (not math.isfinite(step.grad_norm) and scaler is None):
                return
        trial.unmoved = [name for (name, p), old in zip(self.named, before, strict=True) if torch.equal(p, old)]

    def _starts_at_zero(self) -> list[dict[str, Any]]:
        """Groups whose scheduler has set the rate to zero for now: a warm-up begins so, and says what it leads to."""
        groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]
        return [group for group in groups if group["lr"] == 0 and group.get("initial_lr", 0) > 0]

    def idle(self, batch: Any, missing: set[str]) -> list[str]:
        """The tensors, of those that did not learn, of a member of a list whose other members ran side by side with it:
        an expert that no row was sent to. In a chain, where one member's output is the next one's input, every member
        should have run."""
        found: list[str] = []
        for name, holder in self.model.named_modules():
            if not missing or not isinstance(holder, nn.ModuleList | nn.ModuleDict):
                continue
            members = {key: child for key, child in holder.named_children() if any(True for _ in child.parameters())}
            owned = {key: [f"{name}.{key}.{p}" for p, _ in child.named_parameters()] for key, child in members.items()}
            unused = [key for key in members if missing.issuperset(owned[key])]
            kinds = {type(child) for child in members.values()}
            if unused and len(unused) < len(members) and len(kinds) == 1 and self._side_by_side(batch, members):
                found += [each for key in unused for each in owned[key]]
        return found

    def _side_by_side(self, batch: Any, members: dict[str, nn.Module]) -> bool:
        went_in: list[Tensor] = []
        came_out: list[Tensor] = []

        def note(module: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
            went_in.extend(tensors_in((args, kwargs)))
            came_out.extend(tensors_in(out))

        handles = [child.register_forward_hook(note, with_kwargs=True) for child in members.values()]
        try:
            with torch.no_grad():
                self._loss(batch)
        finally:
            for handle in handles:
                handle.remove()
        outputs = {id(tensor) for tensor in came_out}
        return bool(went_in) and not any(id(tensor) in outputs for tensor in went_in)

    def _step(self, number: int, batch: Any, scaler: Any) -> SelftestStep:
        self._zero_grad()
        loss = self._loss(batch)
        names = {id(p): name for name, p in self.named}
        held = [{id(p) for group in each.param_groups for p in group["params"]} for each in self.optimizers]
        found = examine_graph(loss, parameters_in_optimizers=held, named_parameters=dict(self.named))
        order = layers_by_depth(loss, names)
        (loss if scaler is None else scaler.scale(loss)).backward()
        if scaler is not None:
            for optimizer in self.optimizers:
                scaler.unscale_(optimizer)
        gradients = [p.grad for _, p in self.named if p.grad is not None]
        vanished = vanishing_gradient.judge(_sizes(order, dict(self.named)))
        self.silent += self._confirmed.new([*found, *([vanished] if vanished else [])], updated=number > 1)
        norm = float(get_total_norm(gradients)) if gradients else 0.0
        old = [p.detach().clone() for _, p in self.named]
        if self.max_grad_norm is not None:
            clip_grad_norm_([p for _, p in self.named], self.max_grad_norm)
        scale = None if scaler is None else float(scaler.get_scale())
        for optimizer in self.optimizers:
            (optimizer.step if scaler is None else lambda o=optimizer: scaler.step(o))()
        if scaler is not None:
            scaler.update()
        change = _norm([p.detach().float() - o.float() for (_, p), o in zip(self.named, old, strict=True)])
        size = _norm([o.float() for o in old])
        return SelftestStep(
            step=number,
            loss=float(loss.detach()),
            grad_norm=norm,
            update_ratio=change / size if size else None,
            loss_scale=scale,
            landed=scaler is None or math.isfinite(norm),
        )

    def loss_again(self, batch: Any, rng: RngState) -> float:
        """The loss of the first batch after the steps, with the random numbers of the first pass."""
        put_rng(rng)
        with torch.no_grad():
            return float(self._loss(batch))


def _sizes(names: Sequence[str], named: dict[str, nn.Parameter]) -> list[GradientSize]:
    pairs = [(name, named[name]) for name in names]
    return [
        GradientSize(name, float(_dense(p.grad).norm()), p.numel(), p.dim()) for name, p in pairs if p.grad is not None
    ]


def _dense(gradient: Tensor) -> Tensor:
    return gradient.to_dense() if gradient.is_sparse else gradient


def _norm(tensors: list[Tensor]) -> float:
    return float(get_total_norm(tensors)) if tensors else 0.0


def _same(first: tuple[float, list[Tensor | None]], second: tuple[float, list[Tensor | None]]) -> bool:
    """Equal to the bit; NaN equals NaN here."""
    if first[0] != second[0] and not (math.isnan(first[0]) and math.isnan(second[0])):
        return False
    pairs: Iterator[tuple[Tensor | None, Tensor | None]] = zip(first[1], second[1], strict=True)
    return all(a is b or (a is not None and b is not None and torch.equal(a, b)) for a, b in pairs)

"""One probe of a batch: a forward with gradients, and the model's own call made again with changed inputs.

    found = probe_batch(step)          # any `BatchProbe`: a replayable step of a guard or of `steady run`
    found.findings, found.not_checked

Does a prediction change when its own target changes, do rows influence each other, are labels shifted by the wrong
amount, does padding count: questions that one batch answers before training goes on. At most a dozen forward passes;
afterwards weights, buffers, gradients and random numbers are the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ...detect.graph.graph_findings import num_ranks
from ...detect.graph.rules import frozen_by_mistake, reference_aliased
from ...detect.graph.rules.losses import broadcasting_loss_shape
from ...detect.graph.rules.reference_aliased import ModuleCall
from ...detect.graph.run_graph_rules import REPEATED, examine_graph
from ...detect.sampled.activation_probe import is_compiled
from ...detect.tensors.readable_tensors import why_not_read
from ...engine.state.batch_buffer import pristine
from ...records import Finding
from ...records.errors import SteadyError
from ...records.rerun_flag import rerun
from .batch_facts import (
    BatchFacts,
    PaddingFacts,
    SequenceFacts,
    UsedOutput,
    padded_canvas,
    padded_positions,
    shift_of_tags,
)
from .batch_rules import (
    detached_graph,
    label_shift,
    labels_mostly_masked,
    padding_in_loss,
    representation_collapse,
    rows_influence_each_other,
    target_leak,
)
from .borrowed_objects import borrowed
from .model_call import CaughtCall, CaughtCalls, catching
from .module_hooks import mapped, tensors_in

ALL = (
    target_leak,
    label_shift,
    rows_influence_each_other,
    padding_in_loss,
    representation_collapse,
    labels_mostly_masked,
    detached_graph,
)
OF_A_BATCH = (target_leak, label_shift, rows_influence_each_other, padding_in_loss, labels_mostly_masked)
MIN_ROWS, MIN_POSITIONS = 3, 4
_MIN_LABELS = 8
_POSITIONS = 4
_NOISE = 20.0
_TINY = 1e-6
_ORDER = 1e-2
"""Sums over the rows depend on their order by rounding; this much is not rounding."""


class BatchProbe(Protocol):
    """A step that can be run again: `diagnosis.replay.replayable.Replayable` has all of it."""

    model: nn.Module
    optimizers: Sequence[Optimizer]
    batches: Sequence[Any]

    def restore(self) -> None: ...
    def forward(self, batch: Any) -> Mapping[str, Tensor]: ...
    def examining(self) -> AbstractContextManager[None]: ...


@dataclass(slots=True)
class ProbedBatch:
    """What the probe found, and what it could not look at, with the reason."""

    findings: list[Finding] = field(default_factory=list)
    not_checked: list[str] = field(default_factory=list)


def probe_batch(step: BatchProbe, *, number: int = 0) -> ProbedBatch:
    """Probe the first batch of a step. Never raises for what the model does; state is bit-identical afterwards.

    Not run on several ranks: what it does depends on the values of a batch, and ranks must not go different ways.
    """
    found = ProbedBatch()
    if num_ranks() > 1:
        found.not_checked.append("the first batch: several ranks train together")
        return found
    if not step.batches:
        return found
    if is_compiled(step.model):
        found.not_checked.append("the first batch: the model is compiled")
        return found
    try:
        with step.examining(), rerun():
            _probe(step, found)
    except SteadyError:
        raise  # the state could not be restored: the owner must know
    except Exception as error:
        found.not_checked.append(f"the first batch: {type(error).__name__}: {error}")
    found.findings = [replace(each, step=number) for each in found.findings]
    return found


def _probe(step: BatchProbe, found: ProbedBatch) -> None:
    batch = step.batches[0]
    step.restore()
    with torch.enable_grad(), catching() as caught:
        loss = step.forward(pristine(batch, clone=True))["loss"]
    held = [{id(p) for group in each.param_groups for p in group["params"]} for each in step.optimizers]
    facts = BatchFacts(rows=_num_rows(batch))
    named = dict(step.model.named_parameters())
    of_graph = examine_graph(loss, parameters_in_optimizers=held, named_parameters=named, num_rows=facts.rows or None)
    for each in (found_now for found_now in of_graph if found_now.code not in REPEATED):
        if each.code != broadcasting_loss_shape.RULE.code or _targets_may_be_mixed(step, batch, found) is not False:
            found.findings.append(each)
    calls = [ModuleCall(each.module, each.with_grad) for each in caught.calls]
    for finding in (reference_aliased.judge(calls, step.model), frozen_by_mistake.judge(step.model, caught.read)):
        found.findings += [finding] if finding is not None else []
    call = _the_call(caught, found)
    if call is not None:
        _look_at_call(call, loss, batch, facts, found, caught)
    found.findings += [each for rule in OF_A_BATCH if (each := rule.judge(facts)) is not None]


def _the_call(caught: CaughtCalls, found: ProbedBatch) -> CaughtCall | None:
    calls = [call for call in caught.calls if call.with_grad and any(t.requires_grad for t in call.outputs())]
    modules = {id(call.module) for call in calls}
    if len(modules) == 1:
        return calls[0]
    found.not_checked.append(f"predictions: the loss calls {len(modules)} models with gradients, and one can be probed")
    return None


def _look_at_call(
    call: CaughtCall, loss: Tensor, batch: Any, facts: BatchFacts, found: ProbedBatch, caught: CaughtCalls
) -> None:
    """Fill in the facts that need the gradient of the loss at the outputs, and changed inputs."""
    outputs = [each for each in call.outputs() if each.requires_grad and each.dim() > 1 and each is not loss]
    gradients = torch.autograd.grad(loss, outputs, allow_unused=True) if outputs else ()
    pairs = [(each, g) for each, g in zip(outputs, gradients, strict=True) if g is not None]
    used = [found_now for each, g in pairs for found_now in UsedOutput.both_ways(each, g)]
    del outputs, gradients, pairs
    _facts_of_call(call, used, batch, facts, found, caught)


def probe_call(
    call: CaughtCall, used: Sequence[UsedOutput], *, beside: Mapping[str, Tensor], number: int = 0
) -> ProbedBatch:
    """Probe one call of a model whose outputs' gradients are known. The loss is not computed again. `beside` are masks
    and labels of the same rows."""
    found, facts = ProbedBatch(), BatchFacts(rows=_num_rows(call.inputs()))
    _facts_of_call(call, used, beside, facts, found, CaughtCalls())
    found.findings += [each for rule in OF_A_BATCH if (each := rule.judge(facts)) is not None]
    found.findings = [replace(each, step=number) for each in found.findings]
    return found


def _facts_of_call(
    call: CaughtCall,
    used: Sequence[UsedOutput],
    batch: Any,
    facts: BatchFacts,
    found: ProbedBatch,
    caught: CaughtCalls,
) -> None:
    given = call.inputs()
    known = {key: t.detach().cpu() for key, t in _named_tensors(batch, call)}
    facts.unlabelled = _unlabelled(known, used, facts.rows)
    prober = _CallProber(call, {each.shape for each in used}, found)
    if facts.unlabelled is None and (empty := _without_label(known, used, facts.rows)) >= labels_mostly_masked.MASKED:
        # Rows that others look at, as the nodes of a graph, teach something without a label of their own.
        facts.unlabelled = empty if prober.replace_a_row(facts.rows) == 0 else None
    for each in given:
        if each.dim() == 4 and why_not_read(each) is None:
            _look_at_images(each.detach().cpu(), used, known, facts)
        if each.dim() > 1 and each.shape[1] >= MIN_POSITIONS and why_not_read(each) is None:
            _look_at_positions(each, used, known, facts, prober)
    if _rows_are_known(facts, known, call):
        share = prober.replace_a_row(facts.rows)
        # Statistics of the batch, taken by hand, treat all rows alike; what takes rows for time steps does not.
        if share and (caught.attends_over(facts.rows) or prober.order_matters(facts.rows)):
            facts.others_changed = share


def _look_at_positions(
    given: Tensor,
    used: Sequence[UsedOutput],
    known: Mapping[str, Tensor],
    facts: BatchFacts,
    prober: _CallProber,
) -> None:
    """Inputs of (rows, positions, ...) and the outputs that have as many rows and positions."""
    inputs = given.detach().cpu()
    padded = padded_positions(inputs, known) if given.dim() < 4 else None
    tokens = _are_tokens(inputs)
    for output in used:
        if output.image or output.shape[0] != inputs.shape[0] or not 0 <= inputs.shape[1] - output.positions <= 2:
            continue
        if padded is not None:
            padding = padded[0][:, : output.positions]
            facts.paddings.append(PaddingFacts(padding=padding, counted=output.counted, name=padded[1]))
        if tokens and len(output.shape) == 3:
            targets = output.targets.clone()
            if padded is not None:
                targets[targets == inputs[padded[0]][0]] = -1
            sequence = SequenceFacts(ids=inputs.long(), counted=output.counted, targets=targets)
            _replace_tokens(given, sequence, output, prober)
            facts.sequences.append(sequence)
            shift = shift_of_tags(inputs, output.targets, known)
            if shift and prober.sees_around(given, output):
                facts.tag_shift = shift


def _look_at_images(images: Tensor, used: Sequence[UsedOutput], known: Mapping[str, Tensor], facts: BatchFacts) -> None:
    """Pictures on a canvas, and the outputs that have a prediction for each pixel."""
    for output in used:
        if output.image == images.shape[2:] and output.shape[0] == len(images):
            padded = padded_canvas(images, known)
            if padded is not None:
                padding = PaddingFacts(padding=padded[0].flatten(1), counted=output.counted, name=padded[1])
                facts.paddings.append(padding)


def _replace_tokens(ids: Tensor, facts: SequenceFacts, output: UsedOutput, prober: _CallProber) -> None:
    """Where targets are tokens of the input, see what changes with some of them."""
    shift = facts.shift()
    if shift is None or not 0 <= shift <= 2:
        return
    for place in _places(facts, shift):
        changed = prober.replace_a_token(ids, place, output)
        if changed is None:
            return
        facts.changed[place] = changed


def _places(facts: SequenceFacts, shift: int) -> list[int]:
    """A few positions that are targets, spread over the sequence, none at its start."""
    outputs = (facts.targets >= 0).float().mean(0)
    usable = [t + shift for t in range(len(outputs)) if outputs[t] >= 0.5 and 1 <= t + shift < facts.ids.shape[1]]
    count = min(_POSITIONS, len(usable))
    return sorted({usable[(index + 1) * len(usable) // (count + 1)] for index in range(count)})


class _CallProber:
    """Makes the call again with changes, and compares with the unchanged one. At most a dozen calls."""

    def __init__(self, call: CaughtCall, shapes: set[torch.Size], found: ProbedBatch) -> None:
        self._call, self._shapes, self._found = call, shapes, found
        self._plain: list[Tensor] | None = None
        self._tolerance: list[float] = []
        self._failed = False

    def _outputs(self, change: Any = None) -> list[Tensor] | None:
        if self._failed:
            return None
        try:
            return [each for each in self._call.again(change) if each.shape in self._shapes]
        except Exception as error:
            self._failed = True
            self._found.not_checked.append(f"predictions: the model's call cannot be repeated ({type(error).__name__})")
            return None

    def _ready(self) -> list[Tensor] | None:
        """The outputs of the unchanged call; two of them tell how far equal calls differ."""
        if self._plain is None and not self._failed:
            one, two = self._outputs(), self._outputs()
            if one is not None and two is not None and [t.shape for t in one] == [t.shape for t in two]:
                self._plain = one
                for first, second in zip(one, two, strict=True):
                    noise = float(_difference(first, second).amax())
                    self._tolerance.append(max(_NOISE * noise, _TINY * float(first.abs().amax())))
        return self._plain

    def replace_a_token(self, ids: Tensor, place: int, used: UsedOutput) -> Tensor | None:
        """(rows, positions): which predictions change with the token at this place; None where it cannot be tried."""
        plain = self._ready()
        index = next((i for i, t in enumerate(plain or ()) if t.shape == used.shape), None)
        if plain is None or index is None:
            return None
        pool = torch.unique(ids)
        if len(pool) < 2:
            return None
        other = ids.clone()
        following = (torch.searchsorted(pool, ids[:, place].contiguous()) + 1) % len(pool)
        other[:, place] = pool[following]
        outputs = self._outputs(lambda t: other if t is ids else t)
        if outputs is None or len(outputs) != len(plain):
            return None
        pair = (each.transpose(1, 2) if used.classes_first else each for each in (outputs[index], plain[index]))
        return (_difference(*pair) > self._tolerance[index]).cpu()

    def sees_around(self, ids: Tensor, used: UsedOutput) -> bool:
        """Whether a token changes predictions before it and behind it."""
        place = ids.shape[1] // 2
        changed = self.replace_a_token(ids, place, used)
        return changed is not None and bool(changed[:, :place].any()) and bool(changed[:, place + 1 :].any())

    def replace_a_row(self, rows: int) -> float | None:
        """The share of the other rows whose outputs change when the first row becomes a copy of another one."""
        given = [t for t in self._call.inputs() if t.dim() and t.shape[0] == rows]
        source = next((r for r in range(1, rows) if any(not torch.equal(t[0], t[r]) for t in given)), None)
        if source is None:
            return None
        order = torch.arange(rows)
        order[0] = source
        moved = self._rows_off(rows, order)
        return None if moved is None else float(moved[:, 1:].any(0).float().mean())

    def order_matters(self, rows: int) -> bool:
        """Whether rows in reverse order give other outputs than the outputs in reverse order."""
        moved = self._rows_off(rows, torch.arange(rows).flip(0), at_least=_ORDER)
        return moved is not None and bool(moved.any())

    def _rows_off(self, rows: int, order: Tensor, at_least: float = 0.0) -> Tensor | None:
        """(outputs, rows): where the outputs for rows in this order are not the outputs in this order."""
        plain = self._ready()
        outputs = None if plain is None else self._outputs(lambda t: _in_order(t, rows, order))
        if plain is None or outputs is None or [t.shape for t in outputs] != [t.shape for t in plain]:
            return None
        found = []
        for before, after, tolerance in zip(plain, outputs, self._tolerance, strict=True):
            if before.dim() > 1 and before.shape[0] == rows and rows not in before.shape[1:]:
                expected = before[order.to(before.device)]
                limit = max(tolerance, at_least * float(before.abs().amax()))
                found.append((_difference(after, expected).reshape(rows, -1).amax(1) > limit).cpu())
        return torch.stack(found) if found else None


def _difference(one: Tensor, other: Tensor) -> Tensor:
    """The largest difference at each position, row by row: all of it at once would take the memory of the output."""
    return torch.stack([(first - second).abs().amax(-1) for first, second in zip(one, other, strict=True)])


def _in_order(tensor: Tensor, rows: int, order: Tensor) -> Tensor:
    return tensor[order.to(tensor.device)] if tensor.dim() and tensor.shape[0] == rows else tensor


def _rows_are_known(facts: BatchFacts, known: Mapping[str, Tensor], call: CaughtCall) -> bool:
    """Whether the first dimension is surely the rows, and rows have nothing to do with each other by design."""
    rows, given = facts.rows, call.inputs()
    if rows < MIN_ROWS or not given or not all(t.dim() and t.shape[0] == rows for t in given if t.numel() > 1):
        return False
    if any(t.dim() > 1 and rows in t.shape[1:] for t in given):
        return False
    if any(tuple(buffer.shape).count(rows) > 1 for buffer in call.module.buffers()):
        return False  # an adjacency or a similarity of all rows
    if any(getattr(each, "track_running_stats", True) is False for each in call.module.modules()):
        return False  # norms over the batch, in evaluation mode too
    one_each = any(
        t.shape in ((rows,), (rows, 1)) and not any(t.shape == g.shape for g in given) for t in known.values()
    )
    in_order = any(each.shift() is not None for each in facts.sequences)
    return one_each or in_order


def _num_rows(batch: Any) -> int:
    """The leading size of the tensors of a batch; 0 where they do not share one."""
    sizes = {t.shape[0] for t in tensors_in(batch) if t.dim()}
    return sizes.pop() if len(sizes) == 1 else 0


def _named_tensors(batch: Any, call: CaughtCall) -> Iterator[tuple[str, Tensor]]:
    for prefix, value in (("", batch), ("", call.kwargs), ("input", call.args)):
        items = (
            value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list | tuple) else ()
        )
        for key, each in items:
            if isinstance(each, Tensor) and why_not_read(each) is None:
                yield f"{prefix} {key}".strip() if isinstance(key, str) else f"{prefix or 'batch'}[{key}]", each


def _are_tokens(tensor: Tensor) -> bool:
    """Whether it may be token ids: whole numbers of two dimensions that are no mask and no positions."""
    if tensor.dim() != 2 or tensor.is_floating_point() or tensor.dtype is torch.bool or tensor.is_complex():
        return False
    if tensor.shape[0] < 1 or tensor.shape[1] < MIN_POSITIONS or bool((tensor < 0).any()):
        return False
    if len(torch.unique(tensor)) < 3:
        return False
    return not bool((tensor == torch.arange(tensor.shape[1], device=tensor.device)).all())


def _unlabelled(known: Mapping[str, Tensor], used: Sequence[UsedOutput], rows: int) -> float | None:
    """The share of rows whose labels are all one negative value and whose outputs the loss does not depend on."""
    for labels in known.values():
        if labels.dim() != 2 or len(labels) != rows or labels.is_floating_point() or not bool((labels < 0).any()):
            continue
        without = (labels < 0).all(1) & (labels == labels[:, :1]).all(1)
        for output in used:
            if len(output.shape) == 3 and output.shape[0] == rows:
                return float((without & ~output.counted.any(1)).float().mean())
    return None


def _without_label(known: Mapping[str, Tensor], used: Sequence[UsedOutput], rows: int) -> float:
    """The same for one label a row: of several outputs none may depend on the row. A few rows say nothing."""
    for labels in known.values():
        negative = labels.shape == (rows,) and not labels.is_floating_point() and labels < 0
        if rows < _MIN_LABELS or negative is False or len(torch.unique(labels[negative])) != 1:
            continue
        if all(len(output.shape) == 2 and output.shape[0] == rows for output in used):
            counted = torch.stack([output.counted.any(1) for output in used]).any(0)
            if bool((counted == ~negative).all()):
                return float(negative.float().mean())
    return 0.0


def _targets_may_be_mixed(step: BatchProbe, batch: Any, found: ProbedBatch) -> bool | None:
    """Whether the loss stays the same when targets change places among rows: True proves that it pairs all with all,
    False that it does not; None where it could not be tried."""
    tensors = [t for t in tensors_in(batch) if t.is_floating_point() and t.dim() and why_not_read(t) is None]
    if not _copies(batch):
        return None
    answers = []
    for target in (t for t in tensors if t.numel() == t.shape[0] > 2):
        plain = _loss_of(step, batch)
        mixed = _loss_of(step, _with(batch, target, target.roll(1, 0)))
        other = _loss_of(step, _with(batch, target, target + 1))
        if abs(other - plain) > 1e-6 * abs(plain):  # it is used as a target, or as an input
            answers.append(abs(mixed - plain) <= 1e-5 * abs(plain))
    return any(answers) if answers else None


def _with(batch: Any, one: Tensor, other: Tensor) -> Any:
    return mapped(batch, lambda tensor: other if tensor is one else tensor)


@torch.no_grad()
def _loss_of(step: BatchProbe, batch: Any) -> float:
    step.restore()
    return float(step.forward(pristine(batch, clone=True))["loss"])


def _copies(batch: Any) -> bool:
    """Whether a batch is made of plain containers, so that one tensor of it can be replaced."""
    return isinstance(batch, Tensor) or type(batch) in (dict, list, tuple)


class LentStep:
    """Model, loss and batch as they are given to `sg.selftest`. Satisfies `BatchProbe`."""

    def __init__(self, model: nn.Module, optimizers: Sequence[Optimizer], loss_fn: Any, batch: Any) -> None:
        self.model, self.optimizers, self._loss_fn = model, optimizers, loss_fn
        self.batches: Sequence[Any] = [batch]
        self._lent: Any = None

    def restore(self) -> None:
        self._lent.put_back()

    def forward(self, batch: Any) -> Mapping[str, Tensor]:
        answer = self._loss_fn(self.model, batch)
        return answer if isinstance(answer, Mapping) else {"loss": answer}

    @contextmanager
    def examining(self) -> Iterator[None]:
        with borrowed(self.model, self.optimizers, self._loss_fn) as self._lent:
            yield
        self._lent = None

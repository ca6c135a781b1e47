"""Looks at the graphs of a run's first losses, and at its model and optimizers, while it is trained."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.weak import TensorWeakRef

from ...records import Finding, Severity
from ..tensors.living_objects import living
from .autograd_graph import walked
from .decay_in_gradient import DecayInGradient
from .graph_findings import num_ranks
from .rules import dead_relu, vanishing_gradient, weight_decay_dominates
from .rules.losses.loss_inputs import adds_a_number
from .rules.vanishing_gradient import GradientSize
from .run_graph_rules import Confirmed, examine_graph, examine_setup, layers_by_depth

NOT_HELD = "SY405"
_DETACHED = "SY438"
LOOKS = 4
"""Losses that are looked at: what one batch shows by chance, several do not."""
_MAX_WEIGHTS, _MAX_NUMEL, _SAME = 8, 1 << 20, 0.9
LATER = (20, 60, 150)
"""Updates whose losses are looked at for units that have died since."""


class LiveGraph:
    """The first losses of one training. Keeps nothing of a graph, and nothing alive."""

    def __init__(self, model: nn.Module, optimizers: Sequence[Optimizer], failed: Callable[[Exception], None]) -> None:
        self._model = weakref.ref(model)
        self._optimizers = [weakref.ref(optimizer) for optimizer in optimizers]
        self._failed = failed
        self._confirmed = Confirmed()
        self._layers: list[str] = []
        self.last_layer: int | None = None
        """The weight matrix nearest to the loss, by identity."""
        self._looked_at = -1
        self._off = num_ranks() > 1  # sharded parameters are others in the graph
        self.looks = LOOKS if self._off else 0
        self._dead = 0
        """How many losses in a row showed a dead layer that was not reported yet."""
        self._decay = DecayInGradient()
        self._faint: list[tuple[TensorWeakRef, Tensor]] = []
        """Weights with hardly any gradient, and what they were before the last update that was looked at."""
        self.found: list[Finding] = []

    @property
    def done(self) -> bool:
        """Whether there is nothing more to look at, but for units that die later."""
        return self.looks >= LOOKS

    def due(self, update: int) -> bool:
        """Whether the loss of this update is looked at. A comparison."""
        return not self.done or (update in LATER and not self._off) or self._dead > 0

    def _live(self) -> tuple[nn.Module | None, list[Optimizer]]:
        optimizers = [optimizer for reference in self._optimizers if (optimizer := reference()) is not None]
        return self._model(), optimizers

    def loss(self, loss: Tensor, update: int, num_rows: int | None) -> None:
        """A loss, before its backward, once for each update. Reads the device once."""
        model, optimizers = self._live()
        if model is None or update == self._looked_at or not self.due(update):
            return
        named = dict(model.named_parameters())
        if self.done:
            self._look_for_dead_units(loss, update, named)
            return
        self._looked_at, self.looks = update, self.looks + 1

        def examine(held_by: Sequence[Optimizer]) -> list[Finding]:
            held = [{id(p) for group in o.param_groups for p in group["params"]} for o in held_by]
            return examine_graph(
                loss, parameters_in_optimizers=held, named_parameters=named, num_rows=num_rows, step=update,
                failed=self._failed,
            )  # fmt: skip

        findings = examine(optimizers)
        if any(found.code == NOT_HELD for found in findings):  # does an optimizer hold it that we were not given?
            findings = examine([*optimizers, *living(Optimizer)])
        # What belongs to the model is reported, and looked into, by the sampled checks.
        findings = [f for f in findings if f.code != NOT_HELD or not set(f.evidence.get("names", ())) <= set(named)]
        self._report(findings, update)
        if self.looks == 2:  # at the first one a term may still be without effect
            self._suspect(loss, update)
        self._layers = layers_by_depth(loss, {id(parameter): name for name, parameter in named.items()})
        self.last_layer = next((id(named[name]) for name in self._layers if named[name].dim() > 1), None)

    @torch.no_grad()
    def _look_for_dead_units(self, loss: Tensor, update: int, named: Mapping[str, Tensor]) -> None:
        """A few small reductions: at a few later updates, and for as long as a layer seems to have died."""
        self._looked_at = update
        with walked(loss, names={id(parameter): name for name, parameter in named.items()}) as graph:
            found = dead_relu.judge(graph)
        self._report([replace(found, step=update)] if found is not None else [], update)

    def _report(self, findings: Sequence[Finding], update: int) -> None:
        new = self._confirmed.new(findings, updated=update > 0)
        self.found += new
        dead = [found for found in findings if found.code == dead_relu.RULE.code]
        self._dead = self._dead + 1 if dead and not new and self._dead < LOOKS else 0

    def _suspect(self, loss: Tensor, update: int) -> None:
        """What a graph cannot show, and a replay can: a number that is added to the loss."""
        with walked(loss) as graph:
            if adds_a_number(graph):
                self.found.append(
                    Finding(
                        code=_DETACHED,
                        slug="detached_graph",
                        severity=Severity.NOTE,
                        step=update,
                        detail="a number is added to the loss",
                        evidence={"suspected": True},
                    )
                )

    def before_update(self, update: int) -> None:
        """The gradients of an update that was looked at. Reads the device once."""
        layers, self._layers = self._layers, []
        model, _ = self._live()
        if not layers or model is None or update != self._looked_at:
            self._faint = []
            return
        named = dict(model.named_parameters())
        chosen = [(name, named[name]) for name in layers if name in named]
        gradients = [(n, p.grad) for n, p in chosen if p.grad is not None and p.grad.layout is torch.strided]
        if not gradients or len({gradient.device for _, gradient in gradients}) > 1:
            return
        norms = torch.stack([_norm(gradient.detach()) for _, gradient in gradients]).tolist()
        sizes = [
            GradientSize(name, norm, gradient.numel(), gradient.dim())
            for (name, gradient), norm in zip(gradients, norms, strict=True)
        ]
        found = vanishing_gradient.judge(sizes, self._unmoved(named))
        small = [named[name] for name in vanishing_gradient.faint(sizes) if named[name].numel() <= _MAX_NUMEL]
        self._faint = [(TensorWeakRef(weight), weight.detach().clone()) for weight in small[-_MAX_WEIGHTS:]]
        if found is not None:
            self.found += self._confirmed.new([replace(found, step=update)], updated=update > 0)

    @torch.no_grad()
    def _unmoved(self, named: Mapping[str, Tensor]) -> set[str]:
        """The weights with hardly any gradient of which the update since the last look changed next to nothing."""
        names = {id(weight): name for name, weight in named.items()}
        before = [(weight, then) for reference, then in self._faint if (weight := reference()) is not None]
        same = [(weight, (weight == then).float().mean()) for weight, then in before if weight.shape == then.shape]
        return {names[id(weight)] for weight, share in same if id(weight) in names and float(share) > _SAME}

    def setup(self, update: int) -> None:
        """Model and optimizers as they are at the first update and after a few."""
        model, optimizers = self._live()
        if model is not None and num_ranks() == 1:
            findings = examine_setup(model, optimizers, step=update, failed=self._failed)
            if not update:
                weight_decay_dominates.first_look(self._decay, optimizers, update)
            else:
                names = {id(parameter): name for name, parameter in model.named_parameters()}
                found = weight_decay_dominates.judge_divided(self._decay, update, names)
                findings += [replace(found, step=update)] if found is not None else []
            self.found += self._confirmed.new(findings, updated=update > 0)

    def take(self) -> list[Finding]:
        """What was found and not taken yet."""
        found, self.found = self.found, []
        return found


def _norm(gradient: torch.Tensor) -> torch.Tensor:
    """In float32; of a complex one with its imaginary part. Does not sync."""
    norm: torch.Tensor = (gradient if gradient.is_complex() else gradient.float()).norm()
    return norm.float()

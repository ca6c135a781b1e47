"""Everything a training step can change, as one tree of live tensors and plain values, and restoring it.

Restoring copies values into the same storage: `load_state_dict` would cast fp32 moments of bf16 parameters, and
other holders of the tensors (an EMA, a compiled graph, a fused optimizer) must keep seeing them.
"""

from __future__ import annotations

import copy
import math
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from ...detect.tensors.foreign_objects import getattr, hasattr, isinstance
from ...detect.tensors.nested_tensors import named_tensors_in
from ...detect.tensors.readable_tensors import only_shape, write_values
from ...detect.tensors.sharded_tensors import is_sharded, local_of, locals_in, sharded_like
from ..step.trained_parameters import WeakSequence, attributes_of, inner_optimizers, own_state, states_of
from .forward_state import ForwardState
from .rng import RngState, put_rng, rng_from_plain, take_rng

Tree = dict[str, Any]
_SCANNED = frozenset((torch.float32, torch.float64, torch.float16, torch.bfloat16))  # float8: there is no norm of it
_infinities: dict[int, tuple[weakref.ref[Tensor], Tensor]] = {}
"""Parameters with infinities that were accepted, by identity, and where these are."""


class TrainingState:
    """The registered state of one run. `live()` shows it, `restore(tree)` puts a copied tree back."""

    restored = 0
    """How often a state was restored in this process: what was known of the weights before holds no longer."""

    def __init__(
        self,
        *,
        parameters: Mapping[str, Tensor],
        optimizers: Sequence[Optimizer],
        forward: ForwardState,
        scheduler: Any = None,
        scaler: Any = None,
        ema: Any = None,
    ) -> None:
        self.set_parameters(parameters)
        self._optimizers = WeakSequence(optimizers)
        self.forward = forward
        self._non_finite_at_start = forward.non_finite_at_start()
        self._scheduler = scheduler
        self._scaler = scaler
        self._ema = ema

    def live(self) -> Tree:
        """The tree as it is now. Tensors are the live ones: copy before anything moves. Does not sync.

        Of a sharded tensor it has the part that lives on this rank.
        """
        tree = self._live()
        return locals_in(tree) if self.sharded else tree

    def _live(self) -> Tree:
        return {
            "parameters": dict(self._parameters),
            "optimizers": [_optimizer_tree(optimizer) for optimizer in self._optimizers],
            "buffers": self.forward.tensors(),
            "counters": self.forward.counters(),
            "extras": self.forward.extras(),
            "scheduler": _stateful_tree(self._scheduler),
            "scaler": scaler_tree(self._scaler),
            "ema": _stateful_tree(self._ema, self._ids),
            "rng": take_rng(),
        }

    def parameters(self) -> list[Tensor]:
        """The parameters on this rank, in order."""
        return (
            [local_of(p.data) for p in self._parameters.values()] if self.sharded else list(self._parameters.values())
        )

    def set_parameters(self, parameters: Mapping[str, Tensor]) -> None:
        """From now on these are the trained parameters: some were unfrozen or added."""
        self._all = dict(parameters)
        self._ids = frozenset(map(id, self._all.values()))
        self._waits = any(map(is_lazy, self._all.values()))
        self.sharded = any(map(is_sharded, self._all.values()))

    @property
    def _parameters(self) -> dict[str, Tensor]:
        """Those that have values. The parameters of a lazy module get theirs in its first forward."""
        if not self._waits:
            return self._all
        ready = {name: p for name, p in self._all.items() if not is_lazy(p)}
        self._waits = len(ready) < len(self._all)
        return ready

    def accept_buffers(self) -> None:
        """Modules were added or replaced: what is not finite in them by now is as the program made it."""
        self._non_finite_at_start |= self.forward.non_finite_at_start()

    def exchange_parameters(self, others: Mapping[int, Tensor]) -> None:
        """From now on `others[id(p)]` is the parameter wherever p was."""
        self._all = {name: others.get(id(p), p) for name, p in self._all.items()}

    @torch.no_grad()
    def restore(self, tree: Tree) -> None:
        """Put a copied tree back, bit for bit, and clear gradients."""
        TrainingState.restored += 1
        for name, parameter in self._parameters.items():
            if name in tree["parameters"]:  # else it had no values yet
                local_of(parameter.data).copy_(tree["parameters"][name])
            parameter.grad = None
        for optimizer, saved in self._optimizers.beside(tree["optimizers"]):
            _restore_optimizer(optimizer, saved)
        self.forward.put_tensors(tree["buffers"])
        self.forward.put_counters(tree["counters"])
        self.forward.put_extras(tree["extras"])
        _restore_stateful(self._scheduler, tree["scheduler"])
        restore_scaler(self._scaler, tree["scaler"])
        _restore_stateful(self._ema, tree["ema"], self._ids)
        rng = tree["rng"]
        put_rng(rng if isinstance(rng, RngState) else rng_from_plain(rng))

    @torch.no_grad()
    def moved_since(self, tree: Tree) -> float:
        """How far the weights are from those of a copied tree, as a share of their size. Reads each device once."""
        sums = dict[torch.device, list[Tensor]]()
        for name, now in self.live()["parameters"].items():
            then = tree["parameters"].get(name)
            if then is not None and now.is_floating_point():
                here, then = now.detach().float(), then.to(now.device, torch.float32)
                pair = torch.stack([(here - then).square().sum(), then.square().sum()])
                sums.setdefault(here.device, []).append(pair)
        totals = [torch.stack(pairs).sum(0).tolist() for pairs in sums.values()]
        far, size = sum(pair[0] for pair in totals), sum(pair[1] for pair in totals)
        return math.sqrt(far / size) if size else 0.0

    def mismatch(self, tree: Tree) -> str | None:
        """How a tree of another program differs from this one, as a clause; None if it can be restored."""
        saved = tree["parameters"]
        if odd := sorted(set(saved) ^ set(self._parameters)):
            return f"it does not have the same parameters ({', '.join(odd[:3])})"
        for name, parameter in self._parameters.items():
            here = local_of(parameter)
            if saved[name].shape != here.shape:
                return f"its {name} has shape {tuple(saved[name].shape)}, here it is {tuple(here.shape)}"
        groups = [len(optimizer.param_groups) for optimizer in self._optimizers]
        if groups != [len(each["groups"]) for each in tree["optimizers"]]:
            return "its optimizers have other parameter groups"
        return None

    def accept_infinities(self, names: Iterable[str]) -> set[str]:
        """From now on the infinities in these parameters are the program's own, as for classes that are forbidden: an
        update was made with them, and all was finite. Which of them have no NaN, and are accepted so. Reads them."""
        accepted = {name for name in names if name in self._parameters and not self._parameters[name].isnan().any()}
        for name in accepted:
            parameter, key = self._parameters[name], id(self._parameters[name])
            gone = weakref.ref(parameter, lambda _, key=key: _infinities.pop(key, None))  # type: ignore[misc]
            _infinities[key] = (gone, torch.isinf(parameter.detach()))
        return accepted

    def identities(self) -> int:
        """A number that is another one when a tensor of the weights or moments was exchanged. Host work only."""
        states = [state for o in self._optimizers for each in (o, *inner_optimizers(o)) for _, state in states_of(each)]
        found = [*self._parameters.values(), *(value for state in states for value in state.values())]
        plain = [each for each in found if type(each) in (Tensor, nn.Parameter) and each.layout is torch.strided]
        return hash((*map(id, found), *map(Tensor.data_ptr, plain)))

    def floating_tensors(self) -> list[tuple[str, Tensor]]:
        """Parameters, moments and buffers with a name each: what must be finite for a state to be called good."""
        found = [(f"parameter {name}", _judged(p)) for name, p in self._parameters.items()]
        names = {id(p): name for name, p in self._parameters.items()}
        for optimizer in [each for outer in self._optimizers for each in (outer, *inner_optimizers(outer))]:
            for parameter, state in states_of(optimizer):
                label = names.get(id(parameter), "?")
                found += [(f"optimizer {key} of {label}", v) for key, v in state.items() if isinstance(v, Tensor)]
            found += [(f"optimizer {key}", v) for key, v in own_state(optimizer).items() if isinstance(v, Tensor)]
        buffers = self.forward.tensors().items()
        found += [(f"buffer {name}", t) for name, t in buffers if name not in self._non_finite_at_start]
        if self.sharded:
            found = [(name, local_of(t)) for name, t in found]
        return [(name, t) for name, t in found if can_be_scanned(t)]


def _judged(parameter: Tensor) -> Tensor:
    """A parameter as it is judged: with zeros for the infinities that were accepted. Does not sync."""
    known = _infinities.get(id(parameter)) if _infinities else None
    if known is None or known[0]() is not parameter or known[1].shape != parameter.shape:
        return parameter.detach()
    return torch.where(known[1], 0.0, parameter.detach())


def can_be_scanned(tensor: Tensor) -> bool:
    """Whether a tensor's values can be read by the multi-tensor kernels: dense, with memory, of a floating type."""
    return (
        tensor.dtype in _SCANNED
        and not is_lazy(tensor)
        and tensor.numel() > 0
        and tensor.layout is torch.strided
        and not only_shape(tensor)
        and not tensor.is_nested
    )


def non_finite(tensors: Sequence[tuple[str, Tensor]]) -> list[str]:
    """The names of tensors with a NaN or Inf. One pass, one host read."""
    if not tensors:
        return []
    groups: dict[torch.device, list[int]] = {}
    for index, (_, tensor) in enumerate(tensors):
        groups.setdefault(tensor.device, []).append(index)
    bad: list[str] = []
    for indices in groups.values():
        largest = largest_magnitudes([tensors[i][1] for i in indices]).tolist()
        bad += [tensors[i][0] for i, value in zip(indices, largest, strict=True) if not math.isfinite(value)]
    return bad


def bad_state(state: TrainingState) -> dict[str, Any]:
    """What is not finite, as the fields of a Reading: `bad_parameters`, `bad_state`, `bad_buffers`. One host read."""
    bad = non_finite(state.floating_tensors())
    fields = (("bad_parameters", "parameter "), ("bad_state", "optimizer "), ("bad_buffers", "buffer "))
    return {field: tuple(name.removeprefix(kind) for name in bad if name.startswith(kind)) for field, kind in fields}


@torch.no_grad()
def largest_magnitudes(tensors: Sequence[Tensor]) -> Tensor:
    """max |x| of each tensor of one device, as one vector of float32, or float64 if one is (NaN stays NaN). Does not
    sync."""
    norms = torch._foreach_norm(list(tensors), float("inf"))
    wide = torch.float64 if any(norm.dtype is torch.float64 for norm in norms) else torch.float32
    return torch.stack([norm.to(wide) for norm in norms])


def copy_tree(value: Any, copier: Callable[[Tensor], Tensor]) -> Any:
    """The same tree with every tensor replaced by `copier(tensor)` and containers copied."""
    if isinstance(value, Tensor):
        return copier(value.detach())
    if isinstance(value, dict):
        return {key: copy_tree(item, copier) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(copy_tree(item, copier) for item in value)
    return value


def _optimizer_tree(optimizer: Optimizer) -> Tree:
    index = {id(p): i for i, p in enumerate(p for group in optimizer.param_groups for p in group["params"])}
    states = {str(index[id(p)]): dict(state) for p, state in states_of(optimizer) if id(p) in index}
    return {
        "groups": [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups],
        "state": states,
        "own": own_state(optimizer),
        "attributes": attributes_of(optimizer),
        "inner": [_optimizer_tree(inner) for inner in inner_optimizers(optimizer)],
        # A step count lives on the host or, for fused kernels, beside its parameter; the copies are all on the host.
        "scalars_on_device": [
            f"{position}.{key}"
            for position, state in states.items()
            for key, value in state.items()
            if isinstance(value, Tensor) and not value.dim() and value.device.type != "cpu"
        ],
    }


def _restore_optimizer(optimizer: Optimizer, saved: Tree) -> None:
    for group, values in zip(optimizer.param_groups, saved["groups"], strict=True):
        for key, value in values.items():
            if isinstance(value, Tensor) and isinstance(group.get(key), Tensor):
                group[key].copy_(value)
            else:
                group[key] = tuple(value) if isinstance(group.get(key), tuple) else value
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for position, parameter in enumerate(parameters):
        values = saved["state"].get(str(position))
        if values is None:
            optimizer.state.pop(parameter, None)
            continue
        state = optimizer.state[parameter]
        for key in [key for key in state if key not in values]:
            del state[key]
        for key, value in values.items():
            here = state.get(key)
            if is_sharded(here):
                here = local_of(here)
            if isinstance(value, Tensor) and isinstance(here, Tensor) and here.shape == value.shape:
                here.copy_(value)
            elif isinstance(value, Tensor):
                beside = value.dim() > 0 or f"{position}.{key}" in saved.get("scalars_on_device", ())
                made = value.to(parameter.device if beside else "cpu", copy=True)
                part_of_it = value.dim() > 0 and is_sharded(parameter) and value.shape == local_of(parameter).shape
                state[key] = sharded_like(made, parameter) if part_of_it else made
            else:
                state[key] = value
    _restore_own_state(optimizer, saved.get("own", {}))
    for key, value in saved.get("attributes", {}).items():
        setattr(optimizer, key, _put(getattr(optimizer, key, None), value))
    for inner, values in zip(inner_optimizers(optimizer), saved.get("inner", ()), strict=False):
        _restore_optimizer(inner, values)


def _put(here: Any, value: Any) -> Any:
    """A kept value in the place of what is there now: into the same tensor, list or dictionary where it fits."""
    if isinstance(value, Tensor):
        if isinstance(here, Tensor) and here.shape == value.shape and here.dtype == value.dtype:
            write_values(here.detach(), value)
            return here
        return value.clone()
    if isinstance(value, list):
        same = isinstance(here, list) and len(here) == len(value)
        made = [_put(old, new) for old, new in zip(here if same else value, value, strict=True)]
        if not isinstance(here, list):
            return made
        here[:] = made
        return here
    if isinstance(value, dict):
        before = here if isinstance(here, dict) else {}
        changed = {key: _put(before.get(key), new) for key, new in value.items()}
        before.clear()
        before.update(changed)
        return before
    return value


def _restore_own_state(optimizer: Optimizer, saved: dict[Any, Any]) -> None:
    for key in own_state(optimizer).keys() - saved.keys():
        del optimizer.state[key]
    for key, value in saved.items():
        here = optimizer.state.get(key)
        if isinstance(value, Tensor) and isinstance(here, Tensor) and here.shape == value.shape:
            here.copy_(value)
        else:
            optimizer.state[key] = copy_tree(value, Tensor.clone)


def _stateful_tree(thing: Any, theirs: frozenset[int] = frozenset()) -> Any:
    if thing is None:
        return None
    if isinstance(thing, nn.Module):
        return dict(thing.state_dict())
    if hasattr(thing, "state_dict"):
        return copy.deepcopy(thing.state_dict())
    tensors, numbers = _attributes(thing, theirs)
    return {"tensors": tensors, "numbers": numbers}


def _attributes(thing: Any, theirs: frozenset[int]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Of an average written by hand, which has no state_dict: the tensors and the plain numbers it keeps.

    A bound method stands for its object. `user_code` are the trained parameters, which it may also hold on to.
    """
    kept = dict(getattr(getattr(thing, "__self__", thing), "__dict__", {}))
    for name, value in list(kept.items()):
        if isinstance(value, nn.Module):
            own = not any(id(parameter) in theirs for parameter in value.parameters())
            kept[name] = dict(value.state_dict()) if own else {}
    numbers = {name: value for name, value in kept.items() if isinstance(value, bool | int | float)}
    return {name: tensor for name, tensor in named_tensors_in(kept) if id(tensor) not in theirs}, numbers


def _restore_stateful(thing: Any, saved: Any, theirs: frozenset[int] = frozenset()) -> None:
    if thing is None or saved is None:
        return
    if isinstance(thing, nn.Module):
        live = thing.state_dict()
        for name, value in saved.items():
            write_values(local_of(live[name]), local_of(value))
    elif not hasattr(thing, "state_dict"):
        tensors, _ = _attributes(thing, theirs)
        for name, value in saved["tensors"].items():
            if name in tensors and tensors[name].shape == value.shape:
                write_values(local_of(tensors[name]), local_of(value))
        for name, value in saved["numbers"].items():
            setattr(getattr(thing, "__self__", thing), name, value)
    else:
        thing.load_state_dict(copy.deepcopy(saved))


def scaler_tree(scaler: Any) -> Any:
    """A GradScaler's device scalars (live) and settings; None while it has not scaled anything yet."""
    if scaler is None or not scaler.is_enabled() or scaler._scale is None:
        return None
    return {"scale": scaler._scale, "growth": scaler._growth_tracker}


def restore_scaler(scaler: Any, saved: Any) -> None:
    """Put scale and growth tracker back in place and forget this step's inf checks. Does not sync."""
    if scaler is None or saved is None:
        return
    if scaler._scale is None:
        scaler._lazy_init_scale_growth_tracker(saved["scale"].device)
    scaler._scale.copy_(saved["scale"])
    scaler._growth_tracker.copy_(saved["growth"])
    scaler._per_optimizer_states.clear()

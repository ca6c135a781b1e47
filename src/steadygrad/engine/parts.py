"""The parts of a guard, made and put together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from ..detect.gradients import GradientProbe
from ..journal import Journal
from ..policy import Policy
from . import setup
from .books import Books
from .clerk import Clerk
from .forward_state import ForwardState
from .gate import DeviceGate
from .program import StepProgram
from .ranks_council import Alone
from .readout import Readout
from .seal import Sealer
from .shield import Shield
from .step_mode import StepMode
from .training_state import TrainingState
from .update import Followers, Updater

ExtraState = Mapping[str, tuple[Callable[[], Any], Callable[[Any], None]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a guard is made of, but for its recovery, which needs the guard's own verbs."""

    program: StepProgram
    forward: ForwardState
    mode: StepMode
    state: TrainingState
    followers: Followers
    gate: DeviceGate
    updater: Updater
    probe: GradientProbe
    readout: Readout
    sealer: Sealer
    shield: Shield
    books: Books
    clerk: Clerk
    council: Alone


def assemble(
    model: nn.Module,
    loss_fn: Callable[[nn.Module, Any], Any],
    optimizers: Sequence[Optimizer],
    names: list[str],
    parameters: list[Tensor],
    policy: Policy,
    journal: Journal,
    *,
    scheduler: Any,
    scaler: Any,
    ema: Any,
    precision: str,
    accumulate: int,
    max_grad_norm: float | None,
    clip: str,
    extra_state: ExtraState,
    council: Alone,
) -> Parts:
    """Make every part once and wire it to the others."""
    device = parameters[0].device
    scaler = setup.make_scaler(precision, scaler, device)
    modules = [model] + ([loss_fn] if isinstance(loss_fn, nn.Module) else [])
    forward = ForwardState(modules)
    setup.register_scaler(forward, scaler)
    for name, (take, put) in extra_state.items():
        forward.register(name, take, put)
    shield = Shield()
    shield.report_to(journal.event)
    books = Books(
        policy, journal, shield, run=journal.run_id, rank=council.rank, quiet=council.size > 1 and council.rank > 0
    )
    gate = DeviceGate(optimizers)
    return Parts(
        program=StepProgram(
            model, loss_fn, parameters=parameters, optimizers=optimizers, precision=precision, scaler=scaler,
            accumulate=accumulate, device=device,
        ),
        forward=forward,
        mode=StepMode(modules),
        state=TrainingState(
            parameters=dict(zip(names, parameters, strict=True)), optimizers=optimizers, forward=forward,
            scheduler=scheduler, scaler=scaler, ema=ema,
        ),
        followers=Followers(scheduler, setup.ema_update(ema, model), forward),
        gate=gate,
        updater=Updater(
            optimizers, gate, max_grad_norm=max_grad_norm, clip=clip, scaler=scaler, refuses=policy.acts
        ),
        probe=GradientProbe(parameters),
        readout=Readout(names, device),
        sealer=Sealer(device),
        shield=shield,
        books=books,
        clerk=Clerk(books, shield, model, optimizers),
        council=council,
    )  # fmt: skip

"""The parts of a guard, made and wired to each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.optim import Optimizer

from ..config import GuardConfig
from ..detect.gradients import GradientProbe
from ..journal import Journal
from . import setup
from .books import Books
from .clerk import Clerk
from .forward_state import ForwardState
from .gate import DeviceGate
from .parameters import GuardedParameters
from .program import StepProgram
from .ranks_council import Alone
from .readout import Readout
from .rng_retry import RngRetry
from .seal import Sealer
from .shield import Shield
from .step_mode import StepMode
from .training_state import TrainingState
from .update import Followers, Updater


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a guard is made of, but for its loop and its recovery."""

    parameters: GuardedParameters
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
    noise: RngRetry
    council: Alone


def assemble(
    model: nn.Module,
    loss_fn: Callable[[nn.Module, Any], Any],
    optimizers: Sequence[Optimizer],
    guarded: GuardedParameters,
    config: GuardConfig,
    journal: Journal,
    council: Alone,
) -> Parts:
    """Make every part once and wire it to the others."""
    device = guarded.parameters[0].device
    scaler = setup.make_scaler(config.precision, config.scaler, device)
    modules = [model] + ([loss_fn] if isinstance(loss_fn, nn.Module) else [])
    forward = ForwardState(modules)
    setup.register_scaler(forward, scaler)
    for name, (take, put) in (config.extra_state or {}).items():
        forward.register(name, take, put)
    shield = Shield()
    shield.report_to(journal.event)
    books = Books(
        config.policy, journal, shield, run=journal.run_id, rank=council.rank,
        quiet=council.size > 1 and council.rank > 0,
    )  # fmt: skip
    gate = DeviceGate(optimizers)
    program = StepProgram(model, loss_fn, guarded.parameters, optimizers, config, scaler, device)
    state = TrainingState(
        parameters=dict(zip(guarded.names, guarded.parameters, strict=True)), optimizers=optimizers, forward=forward,
        scheduler=config.scheduler, scaler=scaler, ema=config.ema,
    )  # fmt: skip
    parts = Parts(
        parameters=guarded,
        program=program,
        forward=forward,
        mode=StepMode(modules),
        state=state,
        followers=Followers(config.scheduler, setup.ema_update(config.ema, model), forward),
        gate=gate,
        updater=Updater(optimizers, gate, config, scaler),
        probe=GradientProbe(guarded.parameters),
        readout=Readout(guarded.names, device),
        sealer=Sealer(device),
        shield=shield,
        books=books,
        clerk=Clerk(books, shield, model, optimizers),
        noise=RngRetry(program, forward, books, shield),
        council=council,
    )
    guarded.tell(lambda: _follow(parts, journal))
    return parts


def _follow(parts: Parts, journal: Journal) -> None:
    """Parameters were unfrozen or added: everything that goes by their list goes by the new one."""
    guarded = parts.parameters
    parts.program.parameters = guarded.parameters
    parts.probe.watch(guarded.parameters)
    parts.readout.rename(guarded.names)
    parts.state.set_parameters(dict(zip(guarded.names, guarded.parameters, strict=True)))
    journal.set_names(guarded.names)

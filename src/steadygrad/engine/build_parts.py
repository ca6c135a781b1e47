"""The parts of a guard, made and wired to each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.optim import Optimizer

from ..detect.gradient_norms import GradientProbe
from ..detect.tensors.foreign_objects import isinstance
from ..journal import Journal
from . import validate
from .config import GuardConfig
from .distributed.consensus import SingleRank
from .fault_barrier import FaultBarrier
from .record.run_log import RunLog
from .recovery.rng_retry import RngRetry
from .state.forward_state import ForwardState
from .state.training_state import TrainingState
from .step.device_check import DeviceCheck
from .step.device_gate import DeviceGate
from .step.sampled_checks import SampledChecker
from .step.step_mode import StepMode
from .step.step_row import RowReader
from .step.trained_parameters import TrainedParameters
from .step.update import AfterUpdate, Updater
from .step.user_step import UserStep


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a guard is made of, but for its loop and its recovery."""

    parameters: TrainedParameters
    program: UserStep
    forward: ForwardState
    mode: StepMode
    state: TrainingState
    followers: AfterUpdate
    gate: DeviceGate
    updater: Updater
    probe: GradientProbe
    readout: RowReader
    device_check: DeviceCheck
    barrier: FaultBarrier
    log: RunLog
    checker: SampledChecker
    noise: RngRetry
    consensus: SingleRank


def assemble(
    model: nn.Module,
    loss_fn: Callable[[nn.Module, Any], Any],
    optimizers: Sequence[Optimizer],
    guarded: TrainedParameters,
    config: GuardConfig,
    journal: Journal,
    consensus: SingleRank,
) -> Parts:
    """Make every part once and wire it to the others."""
    device = guarded.parameters[0].device
    scaler = validate.make_scaler(config.precision, config.scaler, device)
    modules = [model] + ([loss_fn] if isinstance(loss_fn, nn.Module) else [])
    forward = ForwardState(modules)
    validate.register_scaler(forward, scaler)
    for name, (take, put) in (config.extra_state or {}).items():
        forward.register(name, take, put)
    barrier = FaultBarrier()
    barrier.report_to(journal.event)
    log = RunLog(
        config.policy, journal, barrier, run=journal.run_id, rank=consensus.rank,
        quiet=consensus.size > 1 and consensus.rank > 0,
    )  # fmt: skip
    gate = DeviceGate(optimizers)
    program = UserStep(model, loss_fn, guarded.parameters, optimizers, config, scaler, device)
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
        followers=AfterUpdate(config.scheduler, validate.ema_update(config.ema, model), forward),
        gate=gate,
        updater=Updater(optimizers, gate, config, scaler),
        probe=GradientProbe(guarded.parameters),
        readout=RowReader(guarded.names, device),
        device_check=DeviceCheck(device),
        barrier=barrier,
        log=log,
        checker=SampledChecker(log, barrier, model, optimizers, own_loop=True),
        noise=RngRetry(program, forward, state, log, barrier),
        consensus=consensus,
    )
    if config.scaler is not None:
        parts.checker.unscaled_by_guard()
    guarded.tell(lambda: _follow(parts, journal))
    return parts


def _follow(parts: Parts, journal: Journal) -> None:
    """Modules were replaced, or parameters unfrozen, added or replaced: everything that goes by them goes by what
    there is now."""
    guarded = parts.parameters
    if parts.forward.refresh():
        parts.state.accept_buffers()
        parts.mode.follow()
    parts.program.parameters = guarded.parameters
    parts.probe.watch(guarded.parameters)
    parts.readout.rename(guarded.names)
    parts.state.set_parameters(dict(zip(guarded.names, guarded.parameters, strict=True)))
    journal.set_names(guarded.names)

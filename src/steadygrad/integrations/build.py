"""Builds a training loop with its engine: journal, parts, diagnosis, snapshots and checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer

from ..diagnosis.service import DiagnosisService
from ..engine import validate
from ..engine.build_parts import assemble
from ..engine.config import GuardConfig
from ..engine.distributed.consensus import make_consensus
from ..engine.owned_loop import OwnedLoop
from ..engine.record.notify import Notifier
from ..engine.record.run_log import RunLog
from ..engine.recovery.rollback import Rollback
from ..engine.step.numerics_findings import take_earlier
from ..engine.step.trained_parameters import TrainedParameters
from ..journal import Journal
from ..records import Severity

_REPORTED_BY_SAMPLED_CHECKS = ("PF105", "PF106", "PF210", "PF211", "PF409")


def build_loop(
    model: nn.Module,
    optimizers: Sequence[Optimizer],
    loss_fn: Callable[[nn.Module, Any], Any],
    config: GuardConfig,
) -> OwnedLoop:
    """A loop at its first step, or where a resumed run stopped."""
    guarded = TrainedParameters(model, loss_fn, optimizers)
    policy, run_dir = config.policy, config.run_dir
    shown = validate.run_config(
        policy.name, config.precision_shown or config.precision, config.accumulate, tuple(optimizers)
    ) | {"max_grad_norm": config.max_grad_norm}
    consensus = make_consensus(
        model, guarded.parameters, {
            "policy": policy, "accumulate": config.accumulate, "precision": config.precision,
            "max_grad_norm": config.max_grad_norm, "parameters": guarded.names, "keeps a journal": run_dir is not None,
            "resume": config.resume, "checkpoint_every": config.checkpoint_every, "diagnose": config.diagnose,
            "capsule": config.capsule,
        }, outside=config.outside, num_micro=1 if config.outside else config.accumulate,
        clips=config.max_grad_norm is not None,
    )  # fmt: skip
    journal = Journal(run_dir, names=guarded.names, run_config=shown, rank=consensus.rank, resumes=config.resume)
    if consensus.size > 1:
        journal.number_incidents_from(max(consensus.exchange("journal", journal.last_incident)))
    parts = assemble(model, loss_fn, optimizers, guarded, config, journal, consensus)
    parts.probe.reduces = not consensus.sums_norms
    ring = validate.make_ring(config.snapshots, parts.state, guarded.parameters[0].device, policy)
    store = validate.make_store(
        journal.path, parts.state, config.checkpoint_every, config.keep_checkpoints, config.resume, consensus.rank
    )
    recovery = Rollback(
        parts, ring if consensus.all("ring", ring is not None) else None, store, whole_windows=config.outside
    )
    loop = OwnedLoop(parts, config, DiagnosisService(parts, config), recovery)
    if consensus.rank == 0:
        parts.log.on_incident = Notifier(config.notify, run="" if run_dir is None else str(run_dir))
    if config.resume and (found := recovery.resume()) is not None:
        loop.step, loop.batches_seen = found
    for earlier in take_earlier():
        journal.event("posted_earlier", code=earlier.code, slug=earlier.slug, detail=earlier.detail)
    if consensus.rank == 0:
        with parts.barrier("checkup", None):
            report_checkup(parts.log, model, optimizers, config)
    return loop


def report_checkup(log: RunLog, model: nn.Module, optimizers: Sequence[Optimizer], config: GuardConfig) -> None:
    """What the doctor sees in live objects at no cost. Warnings are shown; all of it is journaled."""
    from ..checkup.live_objects import glance

    for found in glance(
        model, list(optimizers), scaler=config.scaler, scheduler=config.scheduler,
        precision="" if config.outside else config.precision, ignore=_REPORTED_BY_SAMPLED_CHECKS,
    ):  # fmt: skip
        log.journal.event(
            "checkup", code=found.code, slug=found.slug, subject=found.subject, detail=found.detail,
            help=str(found.evidence.get("help", "")),
        )  # fmt: skip
        if found.severity is not Severity.NOTE:
            cure = f" ({help})" if (help := found.evidence.get("help")) else ""
            log.show(f"{found.code} {found.slug}: {found.detail}{cure}", kind=found.code)

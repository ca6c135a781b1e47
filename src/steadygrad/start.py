"""Builds a training loop with its engine: journal, parts, diagnosis, snapshots and checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer

from .config import GuardConfig
from .consult import Consult
from .engine import setup
from .engine.books import Books
from .engine.notify import Notifier
from .engine.owned_loop import OwnedLoop
from .engine.parameters import GuardedParameters
from .engine.parts import assemble
from .engine.posted import take_earlier
from .engine.ranks_council import convene
from .engine.recovery import Recovery
from .journal import Journal
from .records import Severity

_REPORTED_BY_SAMPLED_CHECKS = ("PF105", "PF106", "PF210", "PF211", "PF409")


def start_loop(
    model: nn.Module,
    optimizers: Sequence[Optimizer],
    loss_fn: Callable[[nn.Module, Any], Any],
    config: GuardConfig,
) -> OwnedLoop:
    """A loop at its first step, or where a resumed run stopped."""
    guarded = GuardedParameters(model, loss_fn, optimizers)
    policy, run_dir = config.policy, config.run_dir
    shown = setup.run_config(
        policy.name, config.precision_shown or config.precision, config.accumulate, tuple(optimizers)
    ) | {"max_grad_norm": config.max_grad_norm}
    council = convene(
        model, guarded.parameters, {
            "policy": policy, "accumulate": config.accumulate, "precision": config.precision,
            "max_grad_norm": config.max_grad_norm, "parameters": guarded.names, "keeps a journal": run_dir is not None,
            "resume": config.resume, "checkpoint_every": config.checkpoint_every, "diagnose": config.diagnose,
            "capsule": config.capsule,
        }, outside=config.outside, num_micro=1 if config.outside else config.accumulate,
        clips=config.max_grad_norm is not None,
    )  # fmt: skip
    journal = Journal(run_dir, names=guarded.names, run_config=shown, rank=council.rank)
    if council.size > 1:
        journal.number_incidents_from(max(council.exchange("journal", journal.last_incident)))
    parts = assemble(model, loss_fn, optimizers, guarded, config, journal, council)
    parts.probe.reduces = not council.sums_norms
    ring = setup.make_ring(config.snapshots, parts.state, guarded.parameters[0].device, policy)
    store = setup.make_store(
        journal.path, parts.state, config.checkpoint_every, config.keep_checkpoints, config.resume, council.rank
    )
    recovery = Recovery(
        parts, ring if council.all("ring", ring is not None) else None, store, whole_windows=config.outside
    )
    loop = OwnedLoop(parts, config, Consult(parts, config), recovery)
    if council.rank == 0:
        parts.books.on_incident = Notifier(config.notify, run="" if run_dir is None else str(run_dir))
    if config.resume and (found := recovery.resume()) is not None:
        loop.step, loop.batches_seen = found
    for earlier in take_earlier():
        journal.event("posted_earlier", code=earlier.code, slug=earlier.slug, detail=earlier.detail)
    if council.rank == 0:
        with parts.shield("checkup", None):
            report_checkup(parts.books, model, optimizers, config)
    return loop


def report_checkup(books: Books, model: nn.Module, optimizers: Sequence[Optimizer], config: GuardConfig) -> None:
    """What the doctor sees in live objects at no cost. Warnings are shown; all of it is journaled."""
    from .checkup.live import glance

    for found in glance(
        model, list(optimizers), scaler=config.scaler, scheduler=config.scheduler,
        precision="" if config.outside else config.precision, ignore=_REPORTED_BY_SAMPLED_CHECKS,
    ):  # fmt: skip
        books.journal.event(
            "checkup", code=found.code, slug=found.slug, subject=found.subject, detail=found.detail,
            help=str(found.evidence.get("help", "")),
        )  # fmt: skip
        if found.severity is not Severity.NOTE:
            books.show(f"{found.code} {found.slug}: {found.detail}", kind=found.code)

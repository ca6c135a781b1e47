"""Starts an engine: journal, parts, clinic, snapshots and checkpoints, put together the same way for every door."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer

from .consult import Consult
from .engine import setup
from .engine.books import Books
from .engine.engine import Engine
from .engine.manner import Manner
from .engine.notify import Notifier
from .engine.parts import assemble
from .engine.posted import take_earlier
from .engine.ranks_council import convene
from .journal import Journal
from .policy import Policy
from .records import Severity

_TOLD = ("PF105", "PF106", "PF210", "PF211", "PF409")  # the vitals say these, with more to go by


def start_engine(
    model: nn.Module,
    optimizers: Sequence[Optimizer],
    loss_fn: Callable[[nn.Module, Any], Any],
    policy: Policy,
    *,
    run_dir: Any,
    max_grad_norm: float | None,
    scheduler: Any,
    scaler: Any,
    ema: Any = None,
    precision: str = "fp32",
    accumulate: int = 1,
    clip: str = "exact",
    settle: str = "auto",
    snapshots: str = "auto",
    checkpoint_every: int | None = None,
    keep_checkpoints: int = 3,
    resume: bool = False,
    diagnose: str = "auto",
    capsule: str = "keep",
    capsule_bytes: int = 2 << 30,
    extra_state: Mapping[str, tuple[Callable[[], Any], Callable[[Any], None]]] | None = None,
    outside: bool = False,
    precision_shown: str | None = None,
    notify: Any = None,
) -> Engine:
    """An engine at its first step, or where a resumed run left off. The options are those of Guard."""
    notifier = Notifier(notify, run="" if run_dir is None else str(run_dir))
    names, parameters = setup.guarded_parameters(model, loss_fn, optimizers)
    config = setup.run_config(policy.name, precision_shown or precision, accumulate, tuple(optimizers))
    config["max_grad_norm"] = max_grad_norm
    council = convene(
        model, parameters, {
            "policy": policy, "accumulate": accumulate, "precision": precision, "max_grad_norm": max_grad_norm,
            "parameters": names, "keeps a journal": run_dir is not None, "resume": resume,
            "checkpoint_every": checkpoint_every, "diagnose": diagnose, "capsule": capsule,
        }, outside=outside, num_micro=1 if outside else accumulate, clips=max_grad_norm is not None,
    )  # fmt: skip
    journal = Journal(run_dir, names=names, run_config=config, rank=council.rank)
    if council.size > 1:
        journal.number_incidents_from(max(council.exchange("journal", journal.last_incident)))
    parts = assemble(
        model, loss_fn, optimizers, names, parameters, policy, journal, scheduler=scheduler, scaler=scaler, ema=ema,
        precision=precision, accumulate=accumulate, max_grad_norm=max_grad_norm, clip=clip,
        extra_state=extra_state or {}, council=council,
    )  # fmt: skip
    parts.probe.reduces = not council.sums_norms
    ring = setup.make_ring(snapshots, parts.state, parameters[0].device, policy)
    engine = Engine(
        parts,
        policy,
        Consult(
            parts, {id(p): n for n, p in zip(names, parameters, strict=True)}, max_grad_norm, capsule=capsule,
            capsule_bytes=capsule_bytes,
        ),
        Manner(max_grad_norm=max_grad_norm, settle=settle, diagnose=diagnose, outside=outside),
        ring=ring if council.all("ring", ring is not None) else None,
        store=setup.make_store(journal.path, parts.state, checkpoint_every, keep_checkpoints, resume, council.rank),
        run_path=journal.path,
    )  # fmt: skip
    if council.rank == 0:
        engine.books.on_incident = notifier
    if resume and (found := engine.recovery.resume()) is not None:
        engine.step, engine.batches_seen = found
    for earlier in take_earlier():
        journal.event("posted_earlier", code=earlier.code, slug=earlier.slug, detail=earlier.detail)
    if council.rank == 0:
        with parts.shield("checkup", None):
            tell_checkup(parts.books, model, optimizers, scaler, scheduler, "" if outside else precision)
    return engine


def tell_checkup(
    books: Books, model: nn.Module, optimizers: Sequence[Optimizer], scaler: Any, scheduler: Any, precision: str = ""
) -> None:
    """What the doctor sees in live objects at no cost. Warnings are shown; all of it is journaled."""
    from .checkup.live import glance

    for found in glance(model, list(optimizers), scaler=scaler, scheduler=scheduler, precision=precision, ignore=_TOLD):
        books.journal.event(
            "checkup", code=found.code, slug=found.slug, subject=found.subject, detail=found.detail,
            help=str(found.evidence.get("help", "")),
        )  # fmt: skip
        if found.severity is not Severity.NOTE:
            books.show(f"{found.code} {found.slug}: {found.detail}", kind=found.code)

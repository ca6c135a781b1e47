"""Runs made for the tests: long ones written through the journal, and hostile names that try to break out of a page."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from steadygrad.journal import Journal
from steadygrad.records import (
    Action,
    Cause,
    Decision,
    Diagnosis,
    Finding,
    Incident,
    Origin,
    Remedy,
    Severity,
    StepRecord,
    TensorDigest,
    Trial,
)

CLOSING = "</script><img src=x onerror=\"document.title='owned'\">"
QUOTES = "\"'><svg onload=document.title='owned'>{{7*7}}${7*7}&lt;\u2028\u202e\x1b[2J"
START = 1_790_000_000.0

Call = Callable[..., tuple[int, str, str]]
"""Runs `steady` with these arguments: exit code, output, errors."""


def names(count: int) -> list[str]:
    """Tensor names as a transformer has them."""
    parts = ("attn.q_proj.weight", "attn.k_proj.weight", "attn.v_proj.weight", "attn.out.weight", "mlp.up.weight",
             "mlp.up.bias", "mlp.down.weight", "mlp.down.bias", "norm_1.weight", "norm_2.weight")  # fmt: skip
    return [f"layers.{index // len(parts)}.{parts[index % len(parts)]}" for index in range(count)]


def an_overflow(number: int, step: int, *, module: str = "layers.1.attn", diagnosed: bool = True) -> Incident:
    """An incident of float16 attention scores that outgrew their type."""
    finding = Finding(
        code="SY101", slug="non_finite_loss", severity=Severity.FATAL, step=step, detail="the loss is nan"
    )
    decision = Decision(step=step, actions=(Action.SKIP,), findings=(finding,), reason="batch skipped: the loss is nan")
    scores = TensorDigest(name="scores", shape=(8, 16, 128, 128), dtype="float16", absmax=61_200.0, absmin=0.002)
    weights = TensorDigest(name="weight", shape=(64, 64), dtype="float16", absmax=3.5, absmin=0.001)
    grown = TensorDigest(shape=(8, 16, 128, 128), dtype="float16", absmax=math.inf, num_inf=912, num_nan=4)
    diagnosis = Diagnosis(
        symptom="nan_loss", phase="forward", cause=Cause(code="DX101", slug="fp16_overflow"),
        origin=Origin(
            phase="forward", op="matmul", module=module, source="train.py:212",
            code_line="    scores = query @ key.transpose(-2, -1)", stack=("train.py:88", "model.py:140"),
            inputs=(scores, weights), outputs=(grown,),
        ),
        rows=(3, 5), sample_ids=("1203", "88"), confidence=0.93, reproduced=(3, 3),
        because="matmul of finite float16 numbers left the range of float16",
        trials=(
            Trial(
                remedy=Remedy(code="RX102", slug="upcast_module", change=f"{module} in float32", safety="close",
                              code_change="with torch.autocast('cuda', enabled=False):\n    s = q.float() @ k.float()"),
                finite=True, verified=True, loss_gap=0.0004, gradient_cosine=0.9998, steps_followed=5,
            ),
            Trial(
                remedy=Remedy(code="RX120", slug="clip", change="gradient norm clipped to 1"),
                finite=False, verdict="the loss is still not finite",
            ),
        ),
        notes=("the same line overflowed at two earlier steps of this run",),
    )  # fmt: skip
    return Incident(
        number=number, first_step=step, last_step=step, symptom="nan_loss", headline="the loss is nan",
        findings=(finding,), decision=decision, batch_key=f"batch-{step}", time=START + step,
        diagnosis=diagnosis if diagnosed else None,
    )  # fmt: skip


def write_long_run(
    run_dir: Path,
    *,
    steps: int,
    tensors: int,
    bad: tuple[int, ...] = (),
    seed: int = 0,
    clip: float = 1.0,
    rank: int = 0,
) -> Path:
    """A run of many steps: loss falls, norms wander, and every step in `bad` was refused with an incident of its own.

    Every tensor's norm grows over the hundred steps before a bad one, as it does before an overflow.
    """
    chance = random.Random(seed)
    base = [math.exp(chance.gauss(-3.0, 1.5)) for _ in range(tensors)]
    doomed = set(bad)
    scale = 65536.0
    config = {"max_grad_norm": clip, "policy": "balanced", "precision": "fp16", "optimizers": ["AdamW"]}
    with Journal(run_dir, names=names(tensors), run_config=config, norms_every=10, rank=rank) as journal:
        for step in range(steps):
            ahead = min((other - step for other in bad if other >= step), default=10**9)
            growth = 1.0 + 40.0 * math.exp(-ahead / 25.0) if ahead < 100 else 1.0
            overflow = step > 0 and step % 5003 == 0 and step not in doomed
            refused = step in doomed or overflow
            scale = scale / 2 if overflow else scale
            kept = step % 10 == 0 or refused
            wobble = growth * (1.0 + 0.4 * chance.random())
            norms = [value * wobble for value in base] if kept else ()
            loss = 0.4 + 7.0 / (1.0 + step / (0.05 * steps)) + chance.gauss(0.0, 0.12)
            total = math.sqrt(sum(value * value for value in base)) * wobble
            record = StepRecord(
                run="made", step=step, rank=rank, time=START + 0.5 * step, loss=math.nan if step in doomed else loss,
                terms={"ce": loss * 0.9, "kd": loss * 0.1}, grad_norm=math.nan if refused else total,
                norms=[math.nan] * tensors if step in doomed else norms, loss_scale=scale,
                lr=3e-4 * min(1.0, (step + 1) / (0.02 * steps)) * (0.55 + 0.45 * math.cos(math.pi * step / steps)),
                applied=not refused, flags=("SY101",) if step in doomed else ("SY304",) if overflow else (),
            )  # fmt: skip
            journal.step(record)
            if step in doomed:
                number = journal.next_incident()
                journal.incident(an_overflow(number, step, diagnosed=number <= 3))
            if step % 2000 == 1999:
                assert journal.flush(60.0)
        journal.event("vitals", code="SY401", slug="lost_update", step=100, subject="layers.0.norm_1.weight",
                      detail="updates of layers.0.norm_1.weight are lost: they round to nothing")  # fmt: skip
    return run_dir


def write_guarded_run(run_dir: Path, *, steps: int = 60) -> Path:
    """A real guard on a tiny real model: an empty mask (0 / 0) at two steps and a NaN in the data at a third."""
    import torch
    from ratio_model import Ratio, ratio_loss

    import steadygrad as sg

    torch.manual_seed(0)
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    model = Ratio()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    with sg.Guard(model, optimizer, ratio_loss, max_grad_norm=1.0, run_dir=run_dir) as guard:
        for step in range(steps):
            batch = {
                "x": torch.randn(5, 4, generator=generator),
                "mask": torch.ones(5, 4),
                "y": torch.zeros(5),
                "sample_id": torch.arange(5) + 100 * step,
            }
            if step in (20, 40):
                batch["mask"][3] = 0.0
            if step == 30:
                batch["x"][1, 2] = math.nan
            guard.step(batch)
    return run_dir


def hostile_run(path: Path) -> Path:
    """A run whose every name tries to get out of the page."""
    finding = Finding(code=CLOSING, slug=QUOTES, severity=Severity.FATAL, step=3, subject=CLOSING, detail=QUOTES)
    incident = an_overflow(1, 3, module=CLOSING)
    assert incident.diagnosis is not None
    assert incident.diagnosis.origin is not None
    origin = replace(incident.diagnosis.origin, op=QUOTES, source=CLOSING, code_line=CLOSING, stack=(CLOSING, QUOTES))
    diagnosis = replace(incident.diagnosis, origin=origin, because=CLOSING, notes=(QUOTES,), sample_ids=(CLOSING,))
    incident = replace(incident, headline=CLOSING, batch_key=QUOTES, findings=(finding,), symptom=QUOTES,
                       diagnosis=diagnosis)  # fmt: skip
    with Journal(path, names=[CLOSING, QUOTES], run_config={CLOSING: QUOTES, "max_grad_norm": CLOSING}) as journal:
        for step in range(6):
            bad = step == 3
            journal.step(
                StepRecord(run=CLOSING, step=step, loss=math.nan if bad else 1.0, grad_norm=1.0, norms=[1.0, 2.0],
                           batch_key=CLOSING, terms={CLOSING: 1.0}, applied=not bad, flags=(CLOSING,) if bad else ())
            )  # fmt: skip
        journal.incident(incident)
        journal.incident(Incident(number=2, first_step=5, last_step=5, symptom=CLOSING, headline=QUOTES))
        journal.event("vitals", code=CLOSING, slug=QUOTES, step=CLOSING, subject=QUOTES, detail=CLOSING)
        journal.event(CLOSING, key=QUOTES)
        assert journal.flush(60.0)
    return path


def write_extreme_runs(place: Path) -> list[Path]:
    """Runs at the edges of what can happen: nothing finite, nothing positive, far too large, going back in time."""
    edges: dict[str, list[dict[str, object]]] = {
        "never-finite": [{"loss": math.nan, "grad_norm": math.inf, "norms": [math.nan] * 2, "applied": False}] * 30,
        "below-zero": [{"loss": -5.0 + 0.1 * step, "grad_norm": 0.0, "norms": [0.0, 0.0]} for step in range(30)],
        "far-too-large": [{"loss": 1e10**step, "grad_norm": 1e300, "norms": [3e38, 1e-45]} for step in range(30)],
        "all-the-same": [{"loss": 2.0, "grad_norm": 1.0, "norms": [1.0, 1.0], "lr": 0.0}] * 30,
        "without-norms": [{"loss": 1.0, "grad_norm": 1.0}] * 30,
        "one-step": [{"loss": 1.0, "grad_norm": 1.0, "norms": [1.0, 2.0], "terms": {f"t{i}": 1.0 for i in range(40)}}],
    }  # fmt: skip
    for name, rows in edges.items():
        with Journal(place / name, names=["a.weight", "b.weight"]) as journal:
            for step, row in enumerate(rows):
                journal.step(StepRecord(run="r", step=step, **row))  # type: ignore[arg-type]
    for first in (0, 12):  # resumed from a checkpoint that was eight steps old
        with Journal(place / "resumed", names=["a.weight"]) as journal:
            for step in range(first, first + 20):
                journal.step(StepRecord(run="r", step=step, loss=1.0 + step, grad_norm=1.0, norms=[1.0]))
            journal.incident(an_overflow(journal.next_incident(), first + 10))
    return [*(place / name for name in edges), place / "resumed"]


@contextmanager
def without_permission(path: Path) -> Iterator[None]:
    """Nobody may look into `path`. The superuser may look into everything, so for a while we are not that."""
    mode = path.stat().st_mode & 0o7777
    path.chmod(0)
    stepped_down = os.geteuid() == 0
    try:
        if stepped_down:
            try:
                os.seteuid(65534)
            except PermissionError:
                pytest.skip("the superuser of this machine may not become somebody else")
        yield
    finally:
        if stepped_down:
            os.seteuid(0)
        path.chmod(mode)

"""A bad batch under a GradScaler of the program: also the scale is that of a run without the batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import steadygrad as sg

STEPS, BAD_AT = 20, 9
KINDS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "plain": lambda p: torch.optim.Adam(p, lr=1e-2),
    "fused": lambda p: torch.optim.Adam(p, lr=1e-2, fused=True),
}


def loop(
    kind: str, bad: tuple[int, ...], *, left_out: bool = False, attach: bool = False, overflow: int = -1
) -> tuple[dict[str, Any], Any]:
    """A model with statistics and dropout; the label of a bad batch is NaN, so its output is not."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.2), nn.Linear(6, 1))
    optimizer, scaler = KINDS[kind](model.parameters()), torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=4)
    data = [(torch.randn(6, 4), torch.randn(6, 1)) for _ in range(STEPS)]
    guard = sg.attach(optimizer, model=model, scaler=scaler) if attach else None
    for step, (batch, label) in enumerate(data):
        if step in bad and left_out:
            continue
        optimizer.zero_grad()
        scale = torch.nan if step in bad else 1.0
        loss = (model(batch) - label * scale).pow(2).mean()
        scaled: Tensor = scaler.scale(loss)
        (scaled * (1e38 * 1e10 if step == overflow else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
    if guard is not None:
        guard.close()
    moments = {f"{p}.{k}": v for p, kept in optimizer.state_dict()["state"].items() for k, v in kept.items()}
    return {**model.state_dict(), **moments, "scaler": scaler.state_dict(), "rng": torch.get_rng_state()}, guard


def differing(found: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    same = {k: torch.equal(found[k], v) if isinstance(v, Tensor) else found[k] == v for k, v in wanted.items()}
    return [name for name, equal in same.items() if not equal]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [(BAD_AT,), (BAD_AT, BAD_AT + 1), (0,)])
def test_a_bad_label_leaves_no_trace_in_the_scale_where_an_optimizer_is_attached(
    kind: str, bad: tuple[int, ...]
) -> None:
    wanted, _ = loop(kind, bad, left_out=True)
    found, guard = loop(kind, bad, attach=True)
    assert differing(found, wanted) == []
    assert (guard.summary()["skipped"], guard.summary()["overflows"]) == (len(bad), 0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [(BAD_AT,), (BAD_AT, BAD_AT + 1), (0,)])
def test_a_bad_label_leaves_no_trace_in_the_scale_under_steady_run(
    kind: str, bad: tuple[int, ...], watching: Any
) -> None:
    wanted, _ = loop(kind, bad, left_out=True)
    watch = watching()
    found, _ = loop(kind, bad)
    assert differing(found, wanted) == []
    assert watch.barrier.faults == {}
    assert sum(len(log.incidents) for log in watch.ledger.log) >= 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("entry", ["attach", "run"])
def test_an_overflow_of_the_scale_is_left_to_the_scaler(kind: str, entry: str, watching: Any) -> None:
    wanted, _ = loop(kind, (), overflow=BAD_AT)
    if entry == "run":
        watching()
    found, _ = loop(kind, (), overflow=BAD_AT, attach=entry == "attach")
    assert differing(found, wanted) == []

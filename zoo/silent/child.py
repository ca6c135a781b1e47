"""One case at one entry point, in a process: `python -m zoo.silent.child CASE guard|attach|plain`.

Under `steady run` it is started with "plain": the program itself knows of no guard.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import sys
from pathlib import Path
from typing import Any

import torch

HOME = Path(__file__).resolve().parent


def load(path: Path) -> Any:
    """The case's module; what it imports lies beside its folder, here, or in the zoo."""
    homes = [str(home) for home in (path.resolve().parents[1], HOME, HOME.parent)]
    sys.path[:0] = [home for home in dict.fromkeys(homes) if home not in sys.path]
    spec = importlib.util.spec_from_file_location(f"case_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def train(case: Any) -> None:
    """The case's own loop, or the plain one that its fields describe."""
    model = case.model
    model.train()
    for number, batch in enumerate(case.batches):
        if case.before_step:
            case.before_step(case, number)
        if case.step is not None:
            case.step(case, batch, number)
        else:
            _plain_step(case, model, batch, number)
        if case.after_step:
            case.after_step(case, number)


def _plain_step(case: Any, model: torch.nn.Module, batch: Any, number: int) -> None:
    autocast = torch.autocast("cpu", dtype=case.autocast) if case.autocast else contextlib.nullcontext()
    with autocast:
        loss = case.loss_fn(model, batch)
    (loss / case.accumulation).backward()
    if (number + 1) % case.accumulation:
        return
    if case.clip_norm:
        torch.nn.utils.clip_grad_norm_(model.parameters(), case.clip_norm)
    case.optimizer.step()
    if case.scheduler is not None:
        case.scheduler.step()
    case.optimizer.zero_grad()


def guarded(case: Any) -> Any:
    """`sg.Guard` in the place of the loop's step: what the loop does around it stays."""
    import steadygrad as sg

    options = {"scheduler": case.scheduler, "max_grad_norm": case.clip_norm, "accumulate": case.accumulation}
    guard = sg.Guard(case.model, case.optimizer, case.loss_fn, **options)
    case.model.train()
    for number, batch in enumerate(case.batches):
        if case.before_step:
            case.before_step(case, number)
        guard.step(batch)
        if case.after_step:
            case.after_step(case, number)
    guard.close()
    return guard


def main() -> None:
    path, how = Path(sys.argv[1]).resolve(), sys.argv[2]
    torch.manual_seed(0)
    case = load(path).make(0)
    if how == "plain":
        train(case)
        return
    import steadygrad as sg

    logging.getLogger("steadygrad").setLevel(logging.CRITICAL)
    if how == "guard":
        guard = guarded(case)
    else:
        guard = sg.attach(case.optimizer, model=case.model)
        train(case)
        guard.close()
    named = [(i.first_step, i.diagnosis.cause.slug) for i in guard.incidents if i.diagnosis and i.diagnosis.cause]
    warned = [(found.step, found.slug) for found in guard.vitals]
    print("ANSWER " + json.dumps({"named": named, "warned": warned, "faults": guard.summary()["guard_faults"]}))


if __name__ == "__main__":
    main()

"""Run by each rank under torchrun: a Trainer over data with one poisoned window, and over the data without it.

`two_ranks.py FOLDER ACCUMULATION`. Each rank writes what it found to FOLDER/rankN.json.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path

import torch
from trainer_specimens import all_finite, differences, logged, state_of, tiny_trainer, token_dataset, train

import steadygrad as sg

STEPS, BAD, RANKS = 5, 2, 2


def digest(model: torch.nn.Module) -> str:
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()


def main(folder: Path, accumulation: int) -> None:
    torch.set_num_threads(1)
    rank, rows = int(os.environ["RANK"]), 2 * accumulation * RANKS
    options = {
        "gradient_accumulation_steps": accumulation,
        "max_steps": STEPS,
        "save_strategy": "steps",
        "save_steps": 4,
    }
    trainer = tiny_trainer(folder / "guarded", token_dataset(STEPS * rows, bad=[BAD * rows]), **options)
    guard = sg.attach(trainer, run_dir=folder / "run", diagnose="origin", log_metrics=True)
    train(trainer)
    without = token_dataset(STEPS * rows, without=range(BAD * rows, (BAD + 1) * rows))
    reference = train(tiny_trainer(folder / "plain", without, stop_at=STEPS - 1, **options))
    told = {
        "summary": guard.summary(),
        "headline": [incident.headline for incident in guard.incidents],
        "cause": [incident.diagnosis.cause.slug for incident in guard.incidents if incident.diagnosis],
        "finite": all_finite(trainer),
        "differences": differences(state_of(trainer), state_of(reference)),
        "weights": hashlib.sha256(
            b"".join(p.detach().numpy().tobytes() for p in trainer.model.parameters())
        ).hexdigest(),
        "refused": logged(trainer, "steady/refused_fraction"),
        "nan": [loss != loss for loss in logged(trainer, "loss")],
        "wrapped": type(trainer.model_wrapped).__name__,
    }
    guard.close()
    (folder / f"rank{rank}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))

"""One poisoned batch in every trainer, and whether the guarded run is bit-identical to one that never saw it.

    python -m benchmarks.doors_exactness                 # prints the table
    python -m benchmarks.doors_exactness --write         # and writes benchmarks/results/doors-exactness.md

The set-ups are those of the tests: a tiny GPT-2 with dropout, AdamW, a linear schedule, clipping at 1.0.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "benchmarks" / "results" / "doors-exactness.md"
STEPS, BAD = 6, 2
PARTS = ("weights", "moments", "schedule", "rates", "buffers", "rng", "python")
COLUMNS = (
    "door", "accumulation", "alone", "weights", "moments", "schedule", "learning rates", "buffers", "random states",
    "refused", "`global_step`",
)  # fmt: skip
HEAD = """# One poisoned batch, every door

Made by `python -m benchmarks.doors_exactness --write`. Each row is two runs: one over data in which one window of
batches makes the model divide by zero, with `sg.attach(trainer)`; and one without a guard over the data without that
window, under the same learning-rate schedule. A figure is how many tensors or values of a kind differ in any bit at
the end. "alone" is what the poisoned data does without a guard. `global_step` is the framework's own counter: it
counts the refused step.

"""


def compare(make: Callable[..., Any], size: int, accumulation: int, folder: Path) -> str:
    """One row of the table."""
    from trainer_specimens import all_finite, differences, state_of, train
    from trl_specimens import batches

    import steadygrad as sg

    rows, without = batches(STEPS, bad=BAD, size=size * accumulation)
    options = {"gradient_accumulation_steps": accumulation, "max_steps": STEPS}
    alone = make(folder / "alone", rows, **options)
    try:
        ending = "trains on" if all_finite(train(alone)) else "weights NaN"
    except RuntimeError as error:
        ending = f"crash: {str(error).splitlines()[0][:40]}"
    trainer = make(folder / "guarded", rows, **options)
    with sg.attach(trainer, run_dir=folder / "run") as guard:
        train(trainer)
    reference = train(make(folder / "plain", without, stop_at=STEPS - 1, **options))
    mine, theirs = state_of(trainer), state_of(reference)
    counts = {part: len(differences(mine[part], theirs[part])) for part in PARTS}
    assert guard.summary()["guard_faults"] == {}
    cells = [type(trainer).__name__, accumulation, ending]
    cells += [counts[part] for part in ("weights", "moments", "schedule", "rates", "buffers")]
    cells += [counts["rng"] + counts["python"], f"{guard.summary()['skipped']} of {STEPS}"]
    return row([*cells, f"{trainer.state.global_step}, without {reference.state.global_step}"])


def row(cells: Sequence[Any]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    sys.path.insert(0, str(ROOT / "tests" / "unit" / "trainers"))
    logging.getLogger("steadygrad").setLevel(logging.CRITICAL)
    torch.set_num_threads(1)
    from trainer_specimens import plain_trainer
    from trl_experimental_specimens import ROWS_OF_EXPERIMENTS
    from trl_specimens import ROWS_A_BATCH

    lines = [row(COLUMNS), row(["---"] * len(COLUMNS))]
    for make, size in {plain_trainer: 2, **ROWS_A_BATCH, **ROWS_OF_EXPERIMENTS}.items():
        for accumulation in (1, 2):
            with tempfile.TemporaryDirectory() as folder:
                lines.append(compare(make, size, accumulation, Path(folder)))
    print(HEAD + "\n".join(lines))
    if arguments.write:
        TABLE.write_text(HEAD + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

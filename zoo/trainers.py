"""A trainer's run as a plain case: its model, its batches in its order, its loss and its optimizer.

A replay runs a step part by part, and a trainer does not let itself be taken apart. What can be taken from it
without running it is enough for a loop of the same arithmetic. A trainer of which nothing can be taken (Lightning, a
loop written by hand, one that starts several ranks) is run as it is, under the watch that `steady run` puts on a
program, and what that wrote down is the answer.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import Any

from . import protocol


def needs_trainer(case: Any) -> bool:
    """Whether the case cannot be driven by a plain loop at all."""
    return case.trainer is not None and (case.loss_fn is None or case.model is None or not case.batches)


def plain_case(case: Any) -> Any | None:
    """The same run as a plain case, for trainers in the manner of transformers; None for others."""
    trainer = case.trainer() if case.trainer is not None else None
    if trainer is None or not hasattr(trainer, "compute_loss") or not hasattr(trainer, "get_train_dataloader"):
        return None
    arguments = trainer.args
    batches = [dict(batch) for batch in trainer.get_train_dataloader()]
    if arguments.max_steps and arguments.max_steps > 0:
        batches = batches[: arguments.max_steps * arguments.gradient_accumulation_steps]
    return protocol.Case(
        trainer.model,
        lambda model, batch: trainer.compute_loss(model, dict(batch)),
        batches,
        trainer.create_optimizer(),
        autocast=case.autocast,
        accumulation=arguments.gradient_accumulation_steps,
        clip_norm=arguments.max_grad_norm or None,
    )


def watched_incidents(case: Any) -> list[Any]:
    """Run the case's trainer to its end, unchanged and guarded from outside, and give back the incidents it left.

    Patches this process, and every process it starts, for good: for a process that ends afterwards.
    """
    from steadygrad.integrations.zero_code.launch.process_start import begin
    from steadygrad.integrations.zero_code.launch.run_options import RunOptions
    from steadygrad.journal import read_incidents

    run = Path(tempfile.mkdtemp(prefix="zoo-trainer-")) / "run"
    settings = RunOptions(run_dir=str(run))
    os.environ.update(settings.environment(os.environ))
    begin(settings)
    with contextlib.suppress(Exception):  # a run that ends badly may still have told why
        case.trainer().train()
    return list(read_incidents(run)) if (run / "run.json").exists() else []

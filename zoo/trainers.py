"""A trainer's run as a plain case: its model, its batches in its order, its loss and its optimizer.

The clinic replays steps part by part, and a trainer does not let itself be taken apart. What can be taken from it
without running it is enough for a loop of the same arithmetic.
"""

from __future__ import annotations

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

"""Why a teacher can make a student worse: `python -m recipes.distill.study`. Objectives side by side, on a CPU.

The teacher's routers stay where they began, so that what it says about the training text is computed once and kept.
Then every objective trains the same student on the same batches, in a plain loop.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

import steadygrad as sg

from .alignment import Aligned, Aligner
from .batches import collate, shuffled_numbers
from .measuring import score_student
from .models import make_student
from .objective import take
from .retelling import retell
from .settings import make_settings
from .workbench import Workbench, prepare


@dataclass(frozen=True, slots=True)
class Objective:
    """`match` None is the text alone."""

    name: str
    match: str | None = None
    kd_weight: float = 0.5
    ce_weight: float = 0.5
    temperature: float = 1.0


OBJECTIVES = (
    Objective("the text alone"),
    Objective("tokens that both have, T = 2", match="same", temperature=2.0),
    Objective("every token by its first piece, T = 2", match="every", temperature=2.0),
    Objective("every token by its first piece, T = 1", match="every"),
    Objective("less what the teacher says in two tokens, KD 0.3, CE 0.7", match="begins", kd_weight=0.3, ce_weight=0.7),
    Objective("less what the teacher says in two tokens, KD 0.5, CE 0.5", match="begins"),
    Objective("less what the teacher says in two tokens, KD 0.7, CE 0.3", match="begins", kd_weight=0.7, ce_weight=0.3),
)


class Said:
    """What the frozen teacher says at the aligned positions of every training passage, told in one way."""

    def __init__(self, bench: Workbench, match: str) -> None:
        teacher = bench.teacher
        self.first_piece = Aligner(
            bench.tokenizer, teacher.tokenizer, teacher_begin=teacher.begin, teacher_vocabulary=teacher.vocabulary,
            match=match,
        ).first_piece  # fmt: skip
        self.match = match
        self.compared = torch.zeros(bench.tokenizer.get_vocab_size(), dtype=torch.bool)
        self.compared[self.first_piece[self.first_piece >= 0]] = True
        if match == "every":
            self.compared[:] = True  # a token that cannot be reached is taught never to come
        self.log_p: list[Tensor] = []
        self.told: list[Tensor] = []

    def hear(self, logits: Tensor) -> None:
        """The teacher's logits for one more passage."""
        log_p, told = retell(logits, self.first_piece, len(self.compared))
        self.log_p.append(log_p.half())
        self.told.append(told)

    def batch(self, numbers: Sequence[int], width: int) -> tuple[Tensor, Tensor]:
        """Log-probabilities and weights of some passages, padded."""
        log_p = torch.zeros(len(numbers), width, len(self.compared))
        weights = torch.zeros(len(numbers), width)
        for row, number in enumerate(numbers):
            length = len(self.told[number])
            log_p[row, :length] = self.log_p[number].float()
            weights[row, :length] = self.told[number] if self.match == "begins" else 1.0
        return log_p, weights


@torch.no_grad()
def listen(bench: Workbench, *, batch_size: int = 8) -> dict[str, Said]:
    """The teacher once over the training text, told in every way."""
    said = {match: Said(bench, match) for match in ("begins", "every", "same")}
    for start in range(0, len(bench.train), batch_size):
        rows = bench.train[start : start + batch_size]
        batch = collate(rows, device=bench.device)
        hidden = bench.teacher.model.base_model(batch["teacher_ids"], use_cache=False).last_hidden_state
        logits = bench.teacher.model.get_output_embeddings()(take(hidden, batch["at_teacher"]))
        for row, own in zip(rows, logits, strict=True):
            for each in said.values():
                each.hear(own[: len(row.pairs)])
    return said


def study(bench: Workbench, objective: Objective, said: Said | None, *, steps: int, seed: int) -> list[float]:
    """Validation perplexity after each third of the steps."""
    settings = bench.settings
    student = make_student(
        vocabulary=bench.tokenizer.get_vocab_size(), width=settings.width, layers=settings.layers, seed=seed
    )
    optimizer = torch.optim.AdamW(student.parameters(), lr=settings.student_lr, betas=(0.9, 0.95), weight_decay=0.01)
    curve = []
    order = shuffled_numbers(len(bench.train), batch_size=settings.batch_size, steps=steps, seed=seed)
    for step, numbers in enumerate(order, start=1):
        share = max(0.0, (step - settings.warmup) / max(1, steps - settings.warmup))
        factor = min(1.0, step / settings.warmup) * (0.1 + 0.45 * (1 + math.cos(math.pi * share)))
        optimizer.param_groups[0]["lr"] = settings.student_lr * factor
        rows: list[Aligned] = [bench.train[number] for number in numbers]
        batch = collate(rows, device=bench.device)
        logits = student(batch["student_ids"], use_cache=False).logits
        loss = objective.ce_weight * sg.numerics.masked_cross_entropy(logits, batch["labels"])
        if said is not None:
            log_p, weights = said.batch(numbers, batch["paired"].shape[1])
            loss = loss + objective.kd_weight * sg.numerics.distillation_loss(
                take(logits, batch["at_student"]), log_p, temperature=objective.temperature, mask=weights,
                vocab_mask=said.compared,
            )  # fmt: skip
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(student.parameters(), settings.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()
        if step % max(1, steps // 3) == 0:
            score = score_student(student, bench.validation, bench.validation_bytes, device=bench.device)
            curve.append(score.perplexity)
    return curve


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m recipes.distill.study", description=__doc__)
    parser.add_argument("--teacher", default=None)
    parser.add_argument("--data", default=None)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--vocabulary", type=int, default=1024)
    parser.add_argument("--seed", type=int, nargs="+", default=[0])
    given = parser.parse_args(arguments)
    settings = make_settings(
        teacher=given.teacher, data=given.data, vocabulary=given.vocabulary, steps=given.steps, precision="fp32"
    )
    bench = prepare(settings, say_so=print)
    said = listen(bench)
    print(f"validation perplexity after each third of {given.steps} steps")
    for objective in OBJECTIVES:
        for seed in given.seed:
            known = said[objective.match] if objective.match is not None else None
            curve = study(bench, objective, known, steps=given.steps, seed=seed)
            print(f"| {objective.name} | {seed} | {' | '.join(f'{value:.1f}' for value in curve)} |", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

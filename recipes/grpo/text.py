"""GRPO on SmolLM2-135M: the unit conversions of `recipes.sft`, rewarded for the answer and not taught it.

    python -m recipes.sft train                       first: a model that answers in tags, and is right at times
    python -m recipes.grpo train --task text          then: groups of answers, the right ones made likelier

A reply earns 0.2 for a number in `<answer>` tags and 1.0 more if it is within 5 % of the truth. The untrained model
never writes the tags, so all its groups earn alike and there is nothing to learn from: a warm start is needed, and
`--start` says where it lies. Questions are split as in `recipes.sft`: none of the test is ever sampled in training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset

import steadygrad as sg
from recipes.sft import RECIPE
from recipes.units.base_llm import TRAINING_DTYPE, BaseLLM, continued, with_lora
from recipes.units.command import TEST_SEED
from recipes.units.conversions import METRIC, PAIRS, TOLERANCE, Question, drawn, questions, split
from recipes.units.evaluation import score, table

from .settings import Settings, prepared
from .trainer import StableGRPOTrainer
from .training import StopInTime, config_for, run, written

SETTINGS = Settings(
    steps=120, batch_size=512, group=16, max_tokens=20, learning_rate=1e-4, save_every=50, rank=32, questions=500
)
QUICK = replace(SETTINGS, steps=12, batch_size=32, group=8, max_tokens=16, rank=8, save_every=6, questions=32)
WEIGHTS = (0.2, 1.0)


def settings_for(*, quick: bool) -> Settings:
    gpu = torch.cuda.is_available() and torch.cuda.is_bf16_supported()
    return replace(QUICK if quick else SETTINGS, precision="bf16" if gpu else "fp32")


def answered(completions: list[str], **_: Any) -> list[float]:
    """1 for a number in answer tags."""
    return [float(BaseLLM.answer_in(text) is not None) for text in completions]


def right(completions: list[str], truth: Sequence[float], **_: Any) -> list[float]:
    """1 for an answer within 5 % of the truth."""
    found = [BaseLLM.answer_in(text) for text in completions]
    return [
        float(number is not None and abs(number - true) <= TOLERANCE * abs(true))
        for number, true in zip(found, truth, strict=True)
    ]


def two_sides(settings: Settings, *, quick: bool) -> tuple[list[Question], list[Question]]:
    """The questions to sample answers to, in an order that the seed decides, and those that the test asks."""
    training, testing = split(questions(METRIC if quick else PAIRS))
    return drawn(training, None, seed=settings.seed), drawn(testing, settings.questions, seed=TEST_SEED)


def train(
    settings: Settings,
    out: Path,
    *,
    quick: bool = False,
    resume: bool = False,
    show: bool = True,
    start: Path | None = None,
    model: str | None = None,
    cache: str | None = None,
    seconds: float | None = None,
) -> dict[str, Any]:
    """Test, train, test again. `start` is the folder of a `recipes.sft` run; None for a fresh adapter."""
    training, testing = two_sides(settings, quick=quick)
    checkpoint = prepared(out, settings.check(), resume=resume)
    first = start / "adapter" if start is not None else None
    before = tested(testing, first, model=model, cache=cache, title="Testing, before training")

    llm = BaseLLM(model, instruction=RECIPE.instruction, cache=cache, dtype=TRAINING_DTYPE[settings.precision])
    with torch.random.fork_rng():
        torch.manual_seed(settings.seed)
        adapted = continued(llm.model, first) if first is not None else with_lora(llm.model, rank=settings.rank)
    rows = Dataset.from_dict(
        {"prompt": [llm.prompt(str(question)) for question in training], "truth": [each.truth for each in training]}
    )
    arguments = config_for(
        settings, out, disable_tqdm=not show, reward_weights=list(WEIGHTS), lr_scheduler_type="constant_with_warmup"
    )
    with StableGRPOTrainer(
        adapted, [answered, right], arguments, train_dataset=rows, processing_class=llm.tokenizer,
        run_dir=out / "run", clip_value=settings.clip_value,
        callbacks=[StopInTime(seconds)] if seconds is not None else None,
    ) as trainer:  # fmt: skip
        told = run(trainer, out, checkpoint=checkpoint)
        trainer.model.save_pretrained(out / "adapter")
    del trainer, adapted, llm

    after = tested(testing, out / "adapter", model=model, cache=cache, title="Testing, after training")
    print(table({"before GRPO": before, "after GRPO": after}))
    scores = {name: plain(each) for name, each in (("before", before), ("after", after))}
    return written(out, {"task": "text", **told, "scores": scores, "settings": asdict(settings)})


def evaluate(
    settings: Settings, out: Path, *, quick: bool = False, model: str | None = None, cache: str | None = None
) -> dict[str, Any]:
    """The trained adapter on the questions of the test."""
    _, testing = two_sides(settings, quick=quick)
    found = tested(testing, out / "adapter", model=model, cache=cache, title="Testing")
    print(table({"after GRPO": found}))
    return {"task": "text", "after": plain(found)}


def tested(asked: Sequence[Question], adapter: Path | None, *, model: str | None, cache: str | None, title: str) -> Any:
    """Greedily, as the model will be used: the adapter merged, half precision on a GPU."""
    llm = BaseLLM(model, instruction=RECIPE.instruction, cache=cache, adapter=adapter)
    return score(llm, asked, max_new_tokens=RECIPE.max_new_tokens, title=title)


def plain(found: Any) -> dict[str, Any]:
    return {"accuracy": found.accuracy, "answer_rate": found.answer_rate, "questions": found.num_questions}


def started_from(given: str | None, *, fresh: bool) -> Path | None:
    """Where the warm start lies. Asked for nothing, the place where `recipes.sft` leaves it."""
    if fresh:
        return None
    folder = Path(given or "runs/recipes/sft")
    if not (folder / "adapter" / "adapter_config.json").is_file():
        raise sg.UsageError(
            f"There is no warm start in {folder}: run python -m recipes.sft train first, name its folder with --start, "
            "or begin with a fresh adapter by --fresh."
        )
    return folder

"""Rejection-sampling fine-tuning: let the model reason, keep what came out right, and train on that.

    python -m recipes.cot train                      first: the model that reasons
    python -m recipes.rft train [--tries 4]          then: sample, keep, fine-tune
    python -m recipes.rft test
    python -m recipes.rft load 47 mile kilometer

The worked steps are the model's own, and the truth only said which to keep. Questions are those of the training side;
the test's are never sampled.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recipes.cot import INSTRUCTION, reply
from recipes.units.base_llm import TRAINING_DTYPE, BaseLLM, continued
from recipes.units.command import Recipe, asked_of, main, settings_of, two_sides
from recipes.units.conversions import Question, drawn, is_right
from recipes.units.evaluation import score
from recipes.units.report import report
from recipes.units.training import Settings, fine_tune, seeded
from steadygrad import UsageError

RECIPE = Recipe(
    name="rft",
    instruction=INSTRUCTION,
    reply=reply,
    max_new_tokens=128,
    settings=Settings(epochs=1.0),
    quick={"max_steps": 6, "batch_size": 4, "learning_rate": 5e-4},
    quick_questions=16,
)
FEW = 32
CLOSE = 0.01
"""Kept is what is closer to the truth than the test asks for: what is learnt is what is kept."""


def train(recipe: Recipe, options: Any) -> dict[str, Any]:
    settings = settings_of(recipe, options)
    training, testing = two_sides(recipe, options)
    start = Path(options.start) / "adapter"
    if options.tries < 1 or options.temperature <= 0:
        raise UsageError("Sampling needs --tries of 1 and more and a --temperature above 0.")
    sampler = asked_of(recipe, options, start)
    before = score(sampler, testing, max_new_tokens=recipe.max_new_tokens, title="Testing, before training")

    kept_file = options.out / "kept.jsonl"
    if options.resume and kept_file.is_file():
        kept = [tuple(json.loads(line)) for line in kept_file.read_text().splitlines()]
    else:
        count = options.samples if options.samples is not None else 12 if options.quick else 4000
        asked = drawn(training, count, seed=settings.seed)
        with seeded(settings.seed):
            kept = sampled(sampler, asked, options.tries, options.temperature, recipe.max_new_tokens)
        options.out.mkdir(parents=True, exist_ok=True)
        kept_file.write_text("".join(json.dumps(pair) + "\n" for pair in kept))
    del sampler

    llm = BaseLLM(
        options.model, instruction=recipe.instruction, cache=options.cache, dtype=TRAINING_DTYPE[settings.precision]
    )
    trained = fine_tune(continued(llm.model, start), llm, llm.rows(kept), settings, options.out, resume=options.resume)
    after = score(
        asked_of(recipe, options, options.out / "adapter"),
        testing,
        max_new_tokens=recipe.max_new_tokens,
        title="Testing, after training",
    )
    return report(recipe.name, options.out, settings, {"start": before, "after": after}, trained)


def sampled(
    llm: BaseLLM, asked: Sequence[Question], tries: int, temperature: float, max_new_tokens: int
) -> list[tuple[str, str]]:
    """Questions and the different replies of the model that end in the right answer."""
    replies = llm.generate(
        [str(question) for question in asked],
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        samples=tries,
        title="Sampling",
    )
    kept = [
        (str(question), text)
        for question, texts in zip(asked, replies, strict=True)
        for text in dict.fromkeys(each.strip() for each in texts)
        if is_right(llm.answer_in(text), question, tolerance=CLOSE)
    ]
    print(f"kept {len(kept)} different right replies of {len(asked) * tries} sampled")
    if 0 < len(kept) < FEW:
        print(f"{len(kept)} replies are too few to learn from: this shows that it runs, and nothing about accuracy")
    if not kept:
        raise UsageError("Not one sampled reply was right, so there is nothing to train on: train recipes.cot longer.")
    return kept


if __name__ == "__main__":
    raise SystemExit(main(RECIPE, train))

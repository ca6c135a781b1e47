"""Supervised fine-tuning: a 135M-parameter instruct model learns to convert units, with the answer in tags.

    python -m recipes.sft train [--quick]            test, train under guard, test again
    python -m recipes.sft train --sick               the configuration of the reports that dies, and what saves it
    python -m recipes.sft test                       the trained adapter beside the untrained model
    python -m recipes.sft load 47 mile kilometer     ask it

What was measured, on what and when: docs/recipes/units.md.
"""

from __future__ import annotations

from typing import Any

from recipes.units.base_llm import TRAINING_DTYPE, BaseLLM, with_lora
from recipes.units.command import Recipe, asked_of, main, settings_of, two_sides
from recipes.units.conversions import drawn
from recipes.units.evaluation import score
from recipes.units.report import report
from recipes.units.training import fine_tune, seeded

RECIPE = Recipe(
    name="sft",
    instruction="You convert units. Reply with <answer>number</answer>.",
    reply=lambda question: f"<answer>{question.answer}</answer>",
    max_new_tokens=24,
)


def train(recipe: Recipe, options: Any) -> dict[str, Any]:
    settings = settings_of(recipe, options)
    training, testing = two_sides(recipe, options)
    chosen = drawn(training, options.samples, seed=settings.seed)

    # The untrained model gets the same chat template and the same instruction as the trained one.
    before = score(
        asked_of(recipe, options), testing, max_new_tokens=recipe.max_new_tokens, title="Testing, before training"
    )
    llm = BaseLLM(
        options.model, instruction=recipe.instruction, cache=options.cache, dtype=TRAINING_DTYPE[settings.precision]
    )
    rows = llm.rows((str(question), recipe.reply(question)) for question in chosen)
    with seeded(settings.seed):
        model = with_lora(llm.model, rank=settings.rank)
    trained = fine_tune(model, llm, rows, settings, options.out, resume=options.resume)

    # Asked as it will be used: loaded again from disk, merged, and in half precision where there is a GPU.
    after = score(
        asked_of(recipe, options, options.out / "adapter"),
        testing,
        max_new_tokens=recipe.max_new_tokens,
        title="Testing, after training",
    )
    return report(recipe.name, options.out, settings, {"before": before, "after": after}, trained)


if __name__ == "__main__":
    raise SystemExit(main(RECIPE, train))

"""Token ids lie outside the embedding.

What it sees
    Rows with an id at or above the number of embeddings, or below zero; a tokenizer with more tokens than the model has
    embeddings; a script that adds tokens and never resizes the model.

Why it hurts
    On a GPU the lookup dies with a device-side assert that names neither row nor token and takes the process with it;
    on some kernels it reads other memory.

Smallest example
    tokenizer.add_special_tokens({"pad_token": "[PAD]"}); model(**tokenizer("x", return_tensors="pt"))
    # fixed
    tokenizer.add_special_tokens({"pad_token": "[PAD]"}); model.resize_token_embeddings(len(tokenizer))

What to do
    `model.resize_token_embeddings(len(tokenizer))` after adding tokens.

Safety
    Certain for rows; a note where a script adds nothing but a pad. A tokenizer that is larger by unused tokens
    does no harm.

References
    https://github.com/huggingface/transformers/issues/24698
    https://github.com/mickeysjm/R-BERT/issues/5
"""

from __future__ import annotations

from collections.abc import Iterator

from ....records.checks.checkup import Advice, Level
from ....records.rules import Rule
from ...advice import about, at
from ...inputs.facts import Data, ParameterFacts, Setup
from ...inputs.script import Script, last_word

RULE = Rule("PF505", "token_outside_embedding", "Token ids lie outside the embedding.")
HELP = "model.resize_token_embeddings(len(tokenizer)) after adding tokens"
ADDS = {"add_tokens", "add_special_tokens"}


def of_script(script: Script) -> Iterator[Advice]:
    """Only where a pretrained model is trained in the same file. A note: many models have more embeddings than tokens,
    and where they have not, the first batch fails."""
    trains = any(word.endswith("Trainer") for word in script.called) or "backward" in script.called
    loads = any(word.startswith("AutoModel") or word.endswith(("LMHeadModel", "ForCausalLM")) for word in script.words)
    if not (trains and loads) or "resize_token_embeddings" in script.words:
        return
    for call in script.calls:
        if last_word(call.func) in ADDS and script.imports("transformers"):
            detail = "tokens are added and the embedding is never resized"
            yield at(RULE, Level.NOTE, script, call, detail, help=HELP)
            return


def of_setup(setup: Setup) -> Iterator[Advice]:
    """By the sizes alone: the extra tokens may never be used."""
    if setup.num_tokens is not None and setup.num_embeddings is not None and setup.num_tokens > setup.num_embeddings:
        yield about(
            RULE, Level.WARNING, "tokenizer",
            f"the tokenizer has {setup.num_tokens} tokens and the model {setup.num_embeddings} embeddings", help=HELP,
        )  # fmt: skip


def of_data(data: Data) -> Iterator[Advice]:
    """By the largest and the smallest id that was seen."""
    if data.num_embeddings is not None and data.largest_token is not None and data.largest_token >= data.num_embeddings:
        yield about(
            RULE, Level.ERROR, f"row {data.row_of_largest}",
            f"token {data.largest_token} is outside the embedding of {data.num_embeddings}", help=HELP,
        )  # fmt: skip
    if data.smallest_token is not None and data.smallest_token < 0:
        yield about(
            RULE,
            Level.ERROR,
            "input_ids",
            f"token {data.smallest_token} is below zero",
            help="-100 belongs into labels",
        )


_SCRIPT = """
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer
model = AutoModelForCausalLM.from_pretrained("gpt2")
tokenizer = AutoTokenizer.from_pretrained("gpt2")
tokenizer.add_special_tokens({{"pad_token": "[PAD]"}})
{line}
Trainer(model=model)
"""
SPECIMENS = [
    _SCRIPT.format(line=""),
    Setup(parameters=(ParameterFacts(name="w"),), num_tokens=101, num_embeddings=100),
    Data(num_embeddings=100, largest_token=100, smallest_token=0),
    Data(num_embeddings=100, largest_token=5, smallest_token=-100),
]
NEAR_MISSES = [
    _SCRIPT.format(line="model.resize_token_embeddings(len(tokenizer))"),
    Setup(parameters=(ParameterFacts(name="w"),), num_tokens=100, num_embeddings=128),
    Data(num_embeddings=100, largest_token=99, smallest_token=0),
]

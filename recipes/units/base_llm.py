"""BaseLLM: a small instruct model with its chat template, batched generation, and answers read from `<answer>` tags.

Precision follows one rule. What is trained is float32, always; what is frozen, and the arithmetic, may be bfloat16;
half precision is for inference, where nothing accumulates. FP16 weights that are trained are what `--sick` shows.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.progress import Progress

import steadygrad as sg
from recipes.common.smollm import load_smollm2
from steadygrad import UsageError

ANSWER = re.compile(r"<answer>\s*([-+]?[\d,]*\.?\d+(?:[eE][-+]?\d+)?)\s*</answer>")
TRAINING_DTYPE = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
TOLD_EVERY = 50
"""Without a terminal, one line for so many questions."""
PROJECTIONS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


class BaseLLM:
    """A model, its tokenizer, and what it is told before every question.

    Args:
        model, cache: as for `load_smollm2`.
        instruction: the system message; the untrained model gets the same.
        dtype: of all weights; None for half precision on a GPU and float32 on a CPU, where half is slower.
        adapter: a LoRA folder to merge into the weights, for inference.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        instruction: str,
        cache: str | Path | None = None,
        dtype: torch.dtype | None = None,
        adapter: str | Path | None = None,
    ) -> None:
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.instruction = instruction
        inference = torch.float16 if self.device == "cuda" else torch.float32
        # An adapter is merged in float32: in half precision the sum would be rounded a second time.
        loaded = torch.float32 if adapter is not None else dtype or inference
        self.model, self.tokenizer = load_smollm2(model, dtype=loaded, cache=cache)
        if adapter is not None:
            self.model = merged(self.model, adapter).to(dtype or inference)
        if self.tokenizer.chat_template is None:
            raise UsageError(f"The model {model} has no chat template, so it cannot be asked as an instruct model is.")
        self.model.to(self.device)

    def prompt(self, question: str) -> str:
        messages = [{"role": "system", "content": self.instruction}, {"role": "user", "content": question}]
        return str(self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))

    def rows(self, pairs: Iterable[tuple[str, str]]) -> list[dict[str, list[int]]]:
        """Questions and replies as rows to train on: the prompt is masked, the reply and its end token are taught."""
        asked, replies = zip(*pairs, strict=True)
        prompts = self.tokenizer([self.prompt(question) for question in asked], add_special_tokens=False).input_ids
        said = self.tokenizer(list(replies), add_special_tokens=False).input_ids
        found = []
        for prompt, reply in zip(prompts, said, strict=True):
            taught = [*reply, self.tokenizer.eos_token_id]
            found.append({"input_ids": prompt + taught, "labels": [-100] * len(prompt) + taught})
        return found

    @torch.inference_mode()
    def generate(
        self,
        questions: Sequence[str],
        *,
        max_new_tokens: int,
        temperature: float = 0.0,
        samples: int = 1,
        batch_size: int | None = None,
        title: str = "Asking the model",
    ) -> list[list[str]]:
        """What the model says to each question, `samples` times; greedily at temperature 0."""
        from transformers import LogitsProcessorList

        if not questions:
            raise UsageError("There is no question to ask.")
        self.model.eval()
        self.model.config.use_cache = True
        said: list[list[str]] = []
        options: dict[str, Any] = {"do_sample": False}
        if temperature > 0:
            # Half precision can overflow: a NaN or infinite logit is repaired and reported, a finite one untouched.
            options = {"do_sample": True, "temperature": temperature, "top_k": 0, "num_return_sequences": samples}
            options["logits_processor"] = LogitsProcessorList(
                [sg.numerics.NumericalStabilityLogitsProcessor(clip_value=None)]
            )
        size = max(1, (batch_size or (2048 if self.device == "cuda" else 16)) // samples)
        with Progress(transient=True) as progress:
            bar = progress.add_task(title, total=len(questions))
            for start in range(0, len(questions), size):
                texts = [self.prompt(question) for question in questions[start : start + size]]
                given = self.tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
                given = given.to(self.device)
                out = self.model.generate(
                    **given, max_new_tokens=max_new_tokens, pad_token_id=self.tokenizer.pad_token_id, **options
                )
                new = self.tokenizer.batch_decode(out[:, given.input_ids.shape[1] :], skip_special_tokens=True)
                said += [new[number : number + samples] for number in range(0, len(new), samples)]
                progress.advance(bar, len(texts))
                done, former = len(said), len(said) - len(texts)
                if not progress.console.is_terminal and done // TOLD_EVERY > former // TOLD_EVERY:
                    print(f"{title}: {done} of {len(questions)}", file=sys.stderr, flush=True)
        return said

    @staticmethod
    def answer_in(text: str) -> float | None:
        """The number in the first pair of answer tags, or None where there is none."""
        found = ANSWER.search(text)
        number = float(found.group(1).replace(",", "")) if found else math.nan
        return number if math.isfinite(number) else None


def with_lora(model: Any, *, rank: int, fp32: bool = True) -> Any:
    """The model frozen, with a trainable adapter beside every projection: in float32 whatever the model is in."""
    from peft import LoraConfig, get_peft_model

    lora = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=PROJECTIONS, task_type="CAUSAL_LM")
    return get_peft_model(model, lora, autocast_adapter_dtype=fp32)


def continued(model: Any, adapter: str | Path) -> Any:
    """The model with an adapter that goes on learning."""
    from peft import PeftModel

    return PeftModel.from_pretrained(model, _known(adapter), is_trainable=True)


def merged(model: Any, adapter: str | Path) -> Any:
    from peft import PeftModel

    return PeftModel.from_pretrained(model, _known(adapter)).merge_and_unload()


def _known(adapter: str | Path) -> str:
    if not (Path(adapter) / "adapter_config.json").is_file():
        raise UsageError(f"There is no trained adapter in {adapter}: run the recipe's train first.")
    return str(adapter)

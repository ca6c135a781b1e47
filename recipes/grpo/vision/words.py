"""The processor: a vocabulary of some thirty words, a PIL image processor, and LLaVA's own way to join the two.

Nothing is downloaded, and nothing needs torchvision.
"""

from __future__ import annotations

from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import LlavaProcessor, PreTrainedTokenizerFast
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from .scenes import COLOURS, PLACES, Scene, shapes_of, some_of
from .settings import Settings

SEG, IMAGE, PAD, END, BEGIN = "[SEG]", "<image>", "<pad>", "</s>", "<s>"
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }} "
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image> {% else %}{{ part['text'] }} {% endif %}"
    "{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}assistant {% endif %}"
)


def words_for(pictures: str) -> tuple[str, ...]:
    """What can be asked and answered about these pictures, and no other word."""
    common = ("user", "assistant", "segment", "the", some_of(pictures), "it", "is", ".")
    return (*common, *COLOURS, *shapes_of(pictures), *PLACES)


def make_processor(settings: Settings) -> Any:
    said = (PAD, BEGIN, END, "<unk>", IMAGE, SEG, *words_for(settings.pictures))
    words = {word: place for place, word in enumerate(said)}
    core = Tokenizer(WordLevel(words, unk_token="<unk>"))
    core.pre_tokenizer = WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token=PAD, bos_token=BEGIN, eos_token=END, unk_token="<unk>", padding_side="left",
        extra_special_tokens={"image_token": IMAGE},
    )  # fmt: skip
    side = {"height": settings.image_size, "width": settings.image_size}
    images = CLIPImageProcessorPil(size=side, do_center_crop=False, do_resize=False)
    return LlavaProcessor(
        image_processor=images, tokenizer=tokenizer, patch_size=settings.patch_size, image_token=IMAGE,
        vision_feature_select_strategy="full", num_additional_image_tokens=0, chat_template=TEMPLATE,
    )  # fmt: skip


def prompt(question: str) -> list[dict[str, Any]]:
    """As TRL wants it: the trainer puts the picture in front of the text."""
    return [{"role": "user", "content": question}]


def prompt_ids(processor: Any, question: str, image_tokens: int) -> list[int]:
    """The tokens of the prompt as TRL's own call of the chat template makes them; a test compares the two."""
    text = " ".join(("user", *(IMAGE,) * image_tokens, *question.split(), "assistant"))
    return list(processor.tokenizer(text, add_special_tokens=False)["input_ids"])


def completion_ids(processor: Any, words: str) -> list[int]:
    ids = list(processor.tokenizer(words, add_special_tokens=False)["input_ids"])
    return [*ids, processor.tokenizer.eos_token_id]


def pixels(processor: Any, images: list[Any]) -> torch.Tensor:
    return torch.as_tensor(processor.image_processor(images=images, return_tensors="pt")["pixel_values"])


def join(
    processor: Any, scenes: list[Scene], completions: list[list[int]], image_tokens: int
) -> dict[str, torch.Tensor]:
    """Prompts and completions side by side, prompts padded on the left and completions on the right, with labels."""
    pad = processor.tokenizer.pad_token_id
    prompts = [prompt_ids(processor, scene.question, image_tokens) for scene in scenes]
    before, after = max(map(len, prompts)), max(1, max(map(len, completions)))
    rows, seen, labels = [], [], []
    for first, second in zip(prompts, completions, strict=True):
        left, right = before - len(first), after - len(second)
        rows.append([pad] * left + first + second + [pad] * right)
        seen.append([0] * left + [1] * (len(first) + len(second)) + [0] * right)
        labels.append([-100] * before + second + [-100] * right)
    return {
        "input_ids": torch.tensor(rows),
        "attention_mask": torch.tensor(seen),
        "labels": torch.tensor(labels),
    }

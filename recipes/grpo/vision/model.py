"""LLaVA from configuration, with a mask head in the way of Sa2VA: the hidden state of [SEG] asks, pixels answer.

Shape suffixes: B rows, T tokens, D width of the language model, K width of the mask head, P patches of S pixels with C
features each, H and W pixels of the picture.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlavaConfig, LlavaForConditionalGeneration, SiglipVisionConfig

from .settings import Settings
from .words import IMAGE, SEG


class MaskHead(nn.Module):
    """A mask is where the features of a pixel agree with the query that the [SEG] state makes.

    The pixels' features are read from the vision tower's patches and from nothing else. A head with eyes of its own
    learns its masks faster and the tower learns no shapes: then no word can name one.
    """

    def __init__(self, *, width: int, vision_width: int, mask_width: int, patch_size: int) -> None:
        super().__init__()
        self.query = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, mask_width)
        )
        self.features = nn.Sequential(
            nn.LayerNorm(vision_width), nn.Linear(vision_width, 2 * vision_width), nn.GELU(),
            nn.Linear(2 * vision_width, mask_width * patch_size**2), nn.Unflatten(2, (mask_width, patch_size**2)),
        )  # fmt: skip
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, seg_BD: Tensor, patches_BPC: Tensor) -> Tensor:
        scores_BPS = torch.einsum("bk,bpks->bps", self.query(seg_BD), self.features(patches_BPC))
        side, patch = round(scores_BPS.shape[1] ** 0.5), round(scores_BPS.shape[2] ** 0.5)
        scores = scores_BPS.unflatten(2, (patch, patch)).unflatten(1, (side, side))
        return scores.transpose(2, 3).reshape(len(scores), side * patch, side * patch) + self.bias


class SegmentingLlava(LlavaForConditionalGeneration):  # type: ignore[misc]
    """Names a thing like any LLaVA, and outlines it wherever it says [SEG]."""

    def __init__(self, config: LlavaConfig) -> None:
        super().__init__(config)
        self.mask_head = MaskHead(
            width=config.text_config.hidden_size,
            vision_width=config.vision_config.hidden_size,
            mask_width=config.mask_width,
            patch_size=config.vision_config.patch_size,
        )

    def save_pretrained(self, *args: Any, **kwargs: Any) -> Any:
        """Under the names that the weights have here.

        By default a LLaVA is saved under its former names, and a Trainer that resumes such a checkpoint looks for the
        present ones: it goes on with the language model it was given, and a log line about missing keys.
        """
        return super().save_pretrained(*args, **{**kwargs, "save_original_format": False})

    def words_and_masks(self, *, input_ids: Tensor, attention_mask: Tensor, pixel_values: Tensor) -> tuple[Any, Tensor]:
        """Logits of the words and of the masks. A row without [SEG] gets the mask of its last token; do not use it."""
        tower: list[Tensor] = []
        keep = self.model.vision_tower.register_forward_hook(lambda _, __, out: tower.append(out.last_hidden_state))
        try:
            found = self.model(input_ids=input_ids, attention_mask=attention_mask, pixel_values=pixel_values)
        finally:
            keep.remove()
        states_BTD = found.last_hidden_state
        at_B = (input_ids == self.config.seg_token_id).int().argmax(dim=1)
        seg_BD = states_BTD[torch.arange(len(at_B), device=at_B.device), at_B]
        masks_BHW = self.mask_head(seg_BD, tower[0])
        return self.lm_head(states_BTD), masks_BHW


def make_model(settings: Settings, processor: Any) -> SegmentingLlava:
    """Random weights of the sizes asked for, the same for the same seed."""
    tokenizer = processor.tokenizer
    vision = SiglipVisionConfig(
        hidden_size=settings.vision_width, intermediate_size=2 * settings.vision_width,
        num_hidden_layers=settings.vision_layers, num_attention_heads=4, image_size=settings.image_size,
        patch_size=settings.patch_size, vision_use_head=False,
    )  # fmt: skip
    text = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=settings.width, intermediate_size=2 * settings.width,
        num_hidden_layers=settings.layers, num_attention_heads=4, num_key_value_heads=4,
        max_position_embeddings=256, initializer_range=settings.width**-0.5,
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id, tie_word_embeddings=True,
    )  # fmt: skip
    config = LlavaConfig(
        vision_config=vision, text_config=text, image_token_index=tokenizer.convert_tokens_to_ids(IMAGE),
        vision_feature_select_strategy="full", vision_feature_layer=-1, image_seq_length=settings.image_tokens,
        seg_token_id=tokenizer.convert_tokens_to_ids(SEG), mask_width=settings.mask_width,
        tie_word_embeddings=True,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(settings.seed)
        return SegmentingLlava(config)

"""LLaVA from configuration, with a mask head in the way of Sa2VA: the hidden state of [SEG] asks, pixels answer.

Shape suffixes: B rows, T tokens, D width of the language model, K width of the mask head, C vision width,
H and W pixels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate
from transformers import LlamaConfig, LlavaConfig, LlavaForConditionalGeneration, SiglipVisionConfig

from .settings import Settings
from .words import IMAGE, SEG


class MaskHead(nn.Module):
    """A mask is where a pixel's features agree with the query that the [SEG] state makes.

    The features come from the pixels themselves (edges) and from the vision tower's patches (what is where).
    """

    def __init__(self, *, width: int, vision_width: int, mask_width: int) -> None:
        super().__init__()
        self.query = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, mask_width)
        )
        self.edges = nn.Sequential(
            nn.Conv2d(3, mask_width, 3, padding=1), nn.GELU(), nn.Conv2d(mask_width, mask_width, 3, padding=1)
        )
        self.places = nn.Linear(vision_width, mask_width)
        self.mix = nn.Sequential(nn.GELU(), nn.Conv2d(mask_width, mask_width, 1))

    def forward(self, seg_BD: Tensor, patches_BPC: Tensor, pixels_B3HW: Tensor) -> Tensor:
        side = round(patches_BPC.shape[1] ** 0.5)
        places_BKhw = self.places(patches_BPC).transpose(1, 2).unflatten(2, (side, side))
        places_BKHW = interpolate(places_BKhw, pixels_B3HW.shape[-2:], mode="bilinear")
        features_BKHW = self.mix(self.edges(pixels_B3HW) + places_BKHW)
        return torch.einsum("bk,bkhw->bhw", self.query(seg_BD), features_BKHW)


class SegmentingLlava(LlavaForConditionalGeneration):  # type: ignore[misc]
    """Names a thing like any LLaVA, and outlines it wherever it says [SEG]."""

    def __init__(self, config: LlavaConfig) -> None:
        super().__init__(config)
        self.mask_head = MaskHead(
            width=config.text_config.hidden_size,
            vision_width=config.vision_config.hidden_size,
            mask_width=config.mask_width,
        )

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
        masks_BHW = self.mask_head(seg_BD, tower[0], pixel_values)
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
        pad_token_id=tokenizer.pad_token_id, tie_word_embeddings=False,
    )  # fmt: skip
    config = LlavaConfig(
        vision_config=vision, text_config=text, image_token_index=tokenizer.convert_tokens_to_ids(IMAGE),
        vision_feature_select_strategy="full", vision_feature_layer=-1, image_seq_length=settings.image_tokens,
        tie_word_embeddings=False,
    )  # fmt: skip
    config.seg_token_id = tokenizer.convert_tokens_to_ids(SEG)
    config.mask_width = settings.mask_width
    with torch.random.fork_rng():
        torch.manual_seed(settings.seed)
        return SegmentingLlava(config)

"""A tiny model with a tokenizer and a chat template of its own, as a GGUF file or a folder: the recipes run on it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter, TokenType
from gguf.quants import dequantize, quantize
from recipes.common import gguf_file
from transformers import LlamaConfig, LlamaForCausalLM

BYTES = [chr(code) for code in range(33, 127)]
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *BYTES, "Ġ", "Ċ", "th", "12"]
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['content'] }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>{% endif %}"
)
PACKED = GGMLQuantizationType.Q8_0
NAMES = {ours: theirs for theirs, ours in gguf_file.INSIDE.items()}


def tiny_model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(TOKENS), hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=32, max_position_embeddings=512, rms_norm_eps=1e-5, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def pairs_together(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows as llama.cpp stores them: row i of a head's first half beside row i of its second half."""
    halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, weight.shape[1])
    return np.stack([halves[:, 0], halves[:, 1]], axis=2).reshape(weight.shape)


def their_name(ours: str) -> str:
    outside = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
    if ours in outside:
        return outside[ours]
    _, _, number, *part, _ = ours.split(".")
    return f"blk.{number}.{NAMES['.'.join(part)]}.weight"


def write_gguf(path: Path, *, drop: str = "", architecture: str = "llama") -> LlamaForCausalLM:
    """Write a tiny model as llama.cpp would, and return it with the weights that the packing left."""
    model = tiny_model()
    writer = GGUFWriter(path, architecture)
    config = model.config
    writer.add_block_count(2)
    writer.add_context_length(512)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(96)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_rope_freq_base(100000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types([TokenType.CONTROL] * 3 + [TokenType.NORMAL] * (len(TOKENS) - 3))
    writer.add_token_merges(["t h", "1 2"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    for name, weight in model.named_parameters():
        if name == drop:
            continue
        plain = weight.detach().numpy().copy()
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            stored = quantize(pairs_together(plain, heads), PACKED)
            kept = quantize(plain, PACKED)
        else:
            stored = kept = quantize(plain, PACKED) if plain.ndim == 2 else plain
        if plain.ndim == 2:
            weight.data = torch.from_numpy(dequantize(kept, PACKED))
            writer.add_tensor(their_name(name), stored, raw_dtype=PACKED)
        else:
            writer.add_tensor(their_name(name), stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def tiny_folder(tmp_path: Path) -> Path:
    """The same model, unpacked, as a folder that every recipe takes as its `--model`."""
    write_gguf(tmp_path / "Tiny.gguf")
    gguf_file.convert(tmp_path / "Tiny.gguf", tmp_path / "tiny")
    return tmp_path / "tiny"

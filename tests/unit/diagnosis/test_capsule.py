"""A capsule comes back bit for bit, and a bad one is refused with one clear sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from steadygrad.diagnosis.capsule.capsule import MANIFEST, TENSORS, read_capsule, write_capsule
from steadygrad.records.errors import CapsuleError, UsageError


def state() -> dict[str, Any]:
    return {
        "parameters": {"w": torch.tensor([[1.0, float("nan")], [float("-inf"), 3.0]])},
        "optimizers": [
            {"state": {0: {"step": torch.tensor(3.0), "exp_avg": torch.randn(2, 2)}}, "betas": (0.9, 0.999)}
        ],
        "lr": float("inf"),
    }


def batches() -> list[dict[str, Any]]:
    return [{"x": torch.randn(4, 2), "ids": torch.arange(4), "name": "shard-3"}]


def written(folder: Path, **options: Any) -> Path:
    write_capsule(folder, step=412, state=state(), batches=batches(), **options)
    return folder


def test_a_capsule_comes_back_bit_for_bit(tmp_path: Path) -> None:
    torch.manual_seed(5)
    original, data = state(), batches()
    write_capsule(tmp_path, step=412, state=original, batches=data, facts={"symptom": "nan_loss"})
    found = read_capsule(tmp_path)
    assert found.step == 412
    assert found.facts == {"symptom": "nan_loss"}
    assert found.batches is not None
    assert torch.equal(found.batches[0]["x"], data[0]["x"])
    assert found.batches[0]["name"] == "shard-3"
    weights = original["parameters"]["w"].view(torch.int32)
    assert torch.equal(found.state["parameters"]["w"].view(torch.int32), weights)
    assert found.state["optimizers"][0]["betas"] == (0.9, 0.999)
    assert found.state["lr"] == float("inf")


def test_a_redacted_capsule_holds_no_value_of_the_batch(tmp_path: Path) -> None:
    write_capsule(tmp_path, step=1, state={}, batches=[{"x": torch.full((2, 3), 1234.5)}], batch="redact")
    assert read_capsule(tmp_path).batches is None
    manifest = json.loads((tmp_path / MANIFEST).read_text())
    assert manifest["shapes"] == [{"x": {"shape": [2, 3], "dtype": "torch.float32"}}]
    assert b"1234.5" not in (tmp_path / MANIFEST).read_bytes()


def test_a_tampered_tensor_file_is_refused(tmp_path: Path) -> None:
    blob = written(tmp_path) / TENSORS
    data = bytearray(blob.read_bytes())
    data[-1] ^= 1
    blob.write_bytes(bytes(data))
    with pytest.raises(CapsuleError, match="SHA-256 differs"):
        read_capsule(tmp_path)


def test_a_truncated_tensor_file_is_refused(tmp_path: Path) -> None:
    blob = written(tmp_path) / TENSORS
    blob.write_bytes(blob.read_bytes()[:-8])
    with pytest.raises(CapsuleError, match="truncated or was changed"):
        read_capsule(tmp_path)


def test_a_capsule_without_its_manifest_was_never_finished(tmp_path: Path) -> None:
    (written(tmp_path) / MANIFEST).unlink()
    with pytest.raises(CapsuleError, match="no finished capsule"):
        read_capsule(tmp_path)


def test_a_capsule_from_a_newer_version_says_what_to_do(tmp_path: Path) -> None:
    path = written(tmp_path) / MANIFEST
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps(manifest | {"version": 99}))
    with pytest.raises(CapsuleError, match="Upgrade to read it"):
        read_capsule(tmp_path)


def test_a_manifest_that_names_another_file_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path) / MANIFEST
    manifest = json.loads(path.read_text())
    manifest["blobs"][0]["file"] = "../../etc/passwd"
    path.write_text(json.dumps(manifest))
    with pytest.raises(CapsuleError, match="names another file"):
        read_capsule(tmp_path)


def test_a_manifest_that_asks_for_a_tensor_that_is_not_there_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path) / MANIFEST
    manifest = json.loads(path.read_text())
    manifest["tree"] = {"state": {"$tensor": "t999"}, "batches": None}
    path.write_text(json.dumps(manifest))
    with pytest.raises(CapsuleError, match="is corrupt"):
        read_capsule(tmp_path)


def test_a_torn_manifest_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path) / MANIFEST
    path.write_text(path.read_text()[:40])
    with pytest.raises(CapsuleError, match="torn or not ours"):
        read_capsule(tmp_path)


def test_a_link_in_place_of_the_tensor_file_is_refused(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere.safetensors"
    save_file({"t0": torch.ones(2)}, elsewhere)
    folder = written(tmp_path / "capsule")
    (folder / TENSORS).unlink()
    (folder / TENSORS).symlink_to(elsewhere)
    with pytest.raises(CapsuleError, match="is missing"):
        read_capsule(folder)


def test_a_capsule_over_its_size_cap_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(CapsuleError, match="the limit is 16"):
        write_capsule(tmp_path, step=1, state=state(), batches=[], max_bytes=16)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_batch_mode_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="keep, redact, off"):
        written(tmp_path, batch="blur")


def test_nothing_that_would_need_code_to_load_is_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="without executing code"):
        write_capsule(tmp_path, step=1, state={"hook": print}, batches=[])

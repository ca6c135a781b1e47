"""Every format is read as the library that wrote it means it, and one bad value in it is found."""

from __future__ import annotations

import json
import math
import struct
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from scan_specimens import codes, scanned

import steadygrad as sg
from steadygrad.checkup.scan import measure_tensors
from steadygrad.checkup.scan.scan import scan
from steadygrad.records.checks.scan import ScanLevel, ScanVerdict


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.Linear(16, 4))


def poisoned_state() -> dict[str, torch.Tensor]:
    state = {name: tensor.clone() for name, tensor in model().state_dict().items()}
    state["2.weight"][1, 3] = math.nan
    return state


@pytest.mark.parametrize("suffix", [".safetensors", ".pt", ".pth", ".bin", ".ckpt"])
def test_a_clean_file_is_clean_and_one_nan_in_it_is_found_and_placed(tmp_path: Path, suffix: str) -> None:
    clean, bad = tmp_path / f"clean{suffix}", tmp_path / f"bad{suffix}"
    for path, state in ((clean, model().state_dict()), (bad, poisoned_state())):
        save_file(dict(state), path) if suffix == ".safetensors" else torch.save(state, path)
    found = scanned(clean)
    assert (found.verdict, found.num_tensors, found.findings) == (ScanVerdict.CLEAN, 6, ())
    found = scanned(bad)
    assert found.verdict is ScanVerdict.POISONED
    (finding,) = found.findings
    assert (finding.code, finding.tensor) == ("CK101", "2.weight")
    assert "1 of 64 values is NaN, the first at [1, 3]" in finding.detail


def test_the_old_format_of_torch_is_read_too(tmp_path: Path) -> None:
    path = tmp_path / "old.pt"
    state = poisoned_state() | {"half": torch.full((3,), 2.0).half(), "counts": torch.arange(5)}
    torch.save({"model": state, "epoch": 3}, path, _use_new_zipfile_serialization=False)
    found = scanned(path)
    assert found.problems == ()
    assert [(finding.code, finding.tensor) for finding in found.findings] == [("CK101", "model.2.weight")]
    assert {tensor.name: tensor.largest for tensor in found.tensors}["model.half"] == 2.0


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2,
        torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.complex64, torch.complex128,
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("bad", [False, True])
def test_every_type_torch_saves_is_read_with_its_own_bits(tmp_path: Path, dtype: torch.dtype, bad: bool) -> None:
    values = torch.linspace(-2, 2, 50)
    if bad:
        values[41] = math.nan
    path = tmp_path / "one.pt"
    torch.save({"x": values.to(dtype)}, path)
    found = scanned(path)
    assert codes(found) == (["CK101"] if bad else [])
    (tensor,) = found.tensors
    assert tensor.dtype == str(dtype).removeprefix("torch.")
    assert tensor.first_bad == ((41,) if bad else None)


def test_integers_and_flags_cannot_be_bad_whatever_their_bits(tmp_path: Path) -> None:
    path = tmp_path / "ints.safetensors"
    bits = torch.full((8,), -1, dtype=torch.int32)  # as float32 these would be NaN
    save_file({"ids": bits, "mask": torch.ones(8, dtype=torch.bool), "bytes": torch.full((8,), 255).byte()}, path)
    assert scanned(path).verdict is ScanVerdict.CLEAN


def test_views_of_one_storage_are_scanned_once_and_only_as_far_as_they_reach(tmp_path: Path) -> None:
    base = torch.ones(100)
    base[60:] = math.nan  # memory that no tensor in the file uses
    path = tmp_path / "views.pt"
    tied = base[:10]
    torch.save({"head": tied, "embedding": tied, "wide": base[20:60].view(4, 10).t()}, path)
    found = scanned(path)
    assert (found.verdict, found.num_tensors) == (ScanVerdict.CLEAN, 3)
    assert [(tensor.name, tensor.num_values, tensor.also) for tensor in found.tensors] == [
        ("head", 10, 1),
        ("wide", 40, 0),
    ]
    base[33] = math.inf
    torch.save({"wide": base[20:60].view(4, 10).t()}, path)
    assert codes(scanned(path)) == ["CK102"]


def test_optimizer_state_and_a_pickled_module_get_names_a_person_knows(tmp_path: Path) -> None:
    network = model()
    optimizer = torch.optim.AdamW(network.parameters())
    network(torch.randn(2, 8)).sum().backward()
    optimizer.step()
    optimizer.state[network[0].weight]["exp_avg_sq"][0, 0] = math.inf
    torch.save({"optimizer": optimizer.state_dict(), "steps": 1}, tmp_path / "optimizer.pt")
    (finding,) = [f for f in scanned(tmp_path / "optimizer.pt").findings if f.level is ScanLevel.POISON]
    assert (finding.code, finding.tensor) == ("CK102", "optimizer.state.0.exp_avg_sq")
    torch.save(network, tmp_path / "whole.pt")
    assert [tensor.name for tensor in scanned(tmp_path / "whole.pt").tensors] == [
        n for n, _ in network.named_parameters()
    ]


def test_sparse_quantised_and_parameter_tensors_are_looked_into(tmp_path: Path) -> None:
    values = torch.eye(4)
    values[2, 2] = math.nan
    path = tmp_path / "kinds.pt"
    torch.save(
        OrderedDict(
            sparse=values.to_sparse(),
            parameter=torch.nn.Parameter(values.clone()),
            scalar=torch.tensor(math.nan),
        ),
        path,
    )
    named = {finding.tensor for finding in scanned(path).findings}
    assert {"parameter", "scalar"} <= named
    assert any(name is not None and name.startswith("sparse") for name in named)


class Tagged(torch.Tensor):
    """A tensor of somebody's own class."""


def test_a_tensor_of_a_custom_class_is_read_in_its_type_and_place(tmp_path: Path) -> None:
    path = tmp_path / "own.pt"
    for dtype in (torch.float32, torch.float8_e4m3fn):
        values = torch.ones(3, 5)
        values[1, 4] = math.nan
        torch.save({"tagged": values.to(dtype).as_subclass(Tagged)}, path)
        found = scanned(path)
        assert [(tensor.name, tensor.first_bad) for tensor in found.tensors] == [("tagged", (1, 4))]


@pytest.mark.slow
def test_memory_stays_far_under_500_megabytes_for_a_file_of_gigabytes(tmp_path: Path) -> None:
    """Two tensors of a gigabyte each, as a file with holes: it takes no room on the disk."""
    size = 1 << 30
    header = json.dumps(
        {
            "a": {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]},
            "b": {"dtype": "BF16", "shape": [size // 4, 2], "data_offsets": [size, 2 * size]},
        }
    ).encode()
    header += b" " * (-len(header) % 8)
    path = tmp_path / "large.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + 2 * size)
    script = (
        "import resource, subprocess, sys\n"
        "subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)\n"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)\n"
    )
    command = [sys.executable, "-m", "steadygrad.commands", "scan", "--json", str(path)]
    done = subprocess.run([sys.executable, "-c", script, *command], check=True, capture_output=True, text=True)
    assert int(done.stdout) < 250e6


def test_a_tensor_larger_than_a_piece_is_scanned_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With small pieces and blocks, a tensor of 400 kB goes through all of the machinery of one of 400 GB."""
    monkeypatch.setattr(measure_tensors, "BLOCK_BYTES", 4096)
    monkeypatch.setattr(measure_tensors, "PIECE_BYTES", 3 * 4096)
    monkeypatch.setattr(measure_tensors, "COUNT_ALL_BYTES", 4096)
    values = torch.ones(100_003)
    path = tmp_path / "large.safetensors"
    for place in (0, 1023, 1024, 50_000, 100_002):
        values[place] = math.nan
        save_file({"before": torch.zeros(3), "x": values}, path)
        for threads in (1, 4):
            file = scan([path], threads=threads).files[0]
            (tensor,) = [tensor for tensor in file.tensors if tensor.name == "x"]
            assert (tensor.num_values, tensor.num_nan, tensor.first_bad) == (100_003, 1, (place,))
        values[place] = 1.0


# -- several files


def shards(folder: Path) -> Path:
    state = poisoned_state()
    names = sorted(state)
    places = {}
    for number, part in enumerate((names[:3], names[3:]), start=1):
        file = f"model-{number:05d}-of-00002.safetensors"
        save_file({name: state[name] for name in part}, folder / file)
        places |= dict.fromkeys(part, file)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": places}))
    return index


@pytest.mark.parametrize("by", ["index", "folder"])
def test_shards_are_scanned_once_each_through_their_index(tmp_path: Path, by: str) -> None:
    index = shards(tmp_path)
    report = scan([index if by == "index" else tmp_path])
    assert [Path(file.path).name for file in report.files] == [
        "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
    ]  # fmt: skip
    assert codes(report) == ["CK101"]
    assert report.exit_code == 1


def test_types_that_are_mixed_only_across_shards_are_seen_once(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2, 2).bfloat16(), "b": torch.ones(2, 2).bfloat16()}, tmp_path / "one.safetensors")
    save_file({"c": torch.ones(2, 2)}, tmp_path / "two.safetensors")
    places = {"a": "one.safetensors", "b": "one.safetensors", "c": "two.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    report = scan([tmp_path])
    assert codes(report) == ["CK203"]
    assert "2 matrices are bfloat16, but c is float32" in report.files[-1].findings[0].detail
    assert report.verdict is ScanVerdict.CLEAN


def test_a_missing_shard_is_said_and_the_others_are_scanned(tmp_path: Path) -> None:
    shards(tmp_path)
    (tmp_path / "model-00001-of-00002.safetensors").unlink()
    report = scan([tmp_path])
    (problem,) = [problem for file in report.files for problem in file.problems]
    assert "model-00001-of-00002.safetensors, which is missing: 3 tensors are not there" in problem
    assert codes(report) == ["CK101"]
    assert report.exit_code == 1  # poison outranks what cannot be read


def test_a_shard_that_lacks_a_promised_tensor_is_said(tmp_path: Path) -> None:
    index = shards(tmp_path)
    told = json.loads(index.read_text())
    told["weight_map"]["lm_head.weight"] = "model-00001-of-00002.safetensors"
    index.write_text(json.dumps(told))
    report = scan([tmp_path])
    assert any("lacks tensors that its index promises: lm_head.weight" in p for f in report.files for p in f.problems)


@pytest.mark.filterwarnings("ignore")
def test_a_distributed_checkpoint_is_read_without_torch_distributed(tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp

    dcp.save({"model": poisoned_state(), "step": 7}, checkpoint_id=tmp_path / "dcp", no_dist=True)
    report = scan([tmp_path / "dcp"])
    assert {file.format for file in report.files} == {"torch distributed"}
    assert [(f.code, f.tensor) for file in report.files for f in file.findings] == [("CK101", "model.2.weight")]
    assert sum(file.num_tensors for file in report.files) == 6
    parts = sorted((tmp_path / "dcp").glob("*.distcp"))
    assert scan(parts).exit_code == 1
    for part in parts:
        part.unlink()
    assert "which is missing" in scan([tmp_path / "dcp"]).files[0].problems[0]
    (tmp_path / "dcp" / ".metadata").unlink()
    parts[0].write_bytes(b"")
    assert "the save was not finished" in scan([tmp_path / "dcp"]).files[0].problems[0]


def test_a_trainers_folder_with_its_arguments_and_random_numbers_is_clean(tmp_path: Path) -> None:
    import random

    import numpy as np

    save_file(dict(model().state_dict()), tmp_path / "model.safetensors")
    optimizer = torch.optim.SGD(model().parameters(), lr=0.1)
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    random_state = {"python": random.getstate(), "numpy": np.random.get_state(), "cpu": torch.get_rng_state()}
    torch.save(random_state, tmp_path / "rng_state.pth")
    torch.save(Arguments(), tmp_path / "training_args.bin")
    (tmp_path / "vocabulary.bin").write_bytes(b"just some bytes")
    (tmp_path / "config.json").write_text("{}")
    report = scan([tmp_path])
    assert report.verdict is ScanVerdict.CLEAN
    notes = {Path(file.path).name: file.notes for file in report.files}
    assert "Arguments" in notes["training_args.bin"][0]
    assert "nothing was run" in notes["training_args.bin"][0]
    assert "passed over" in notes["vocabulary.bin"][0]


class Arguments:
    def __init__(self) -> None:
        self.learning_rate = 2e-4


# -- our own


def test_a_guards_checkpoints_and_capsules_are_scanned_with_the_models_names(tmp_path: Path) -> None:
    network = model()
    optimizer = torch.optim.AdamW(network.parameters())

    def loss_fn(module: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return module(batch).pow(2).mean()

    run = tmp_path / "run"
    with sg.Guard(network, optimizer, loss_fn, run_dir=run, checkpoint_every=2) as guard:
        for index in range(6):
            batch = torch.randn(4, 8)
            if index == 4:
                batch[1, 2] = math.nan
            guard.step(batch)
    report = scan([run])
    kinds = {file.format for file in report.files}
    assert kinds == {"steadygrad checkpoint", "steadygrad capsule"}
    assert report.verdict is ScanVerdict.CLEAN  # the bad batch in the capsule is evidence, not poison
    capsule = next(file for file in report.files if file.format == "steadygrad capsule")
    assert any(finding.level is ScanLevel.NOTE and "evidence" in finding.detail for finding in capsule.findings)
    names = {tensor.name for file in report.files for tensor in file.tensors}
    assert "state.parameters.0.weight" in names
    assert any("exp_avg" in name for name in names)

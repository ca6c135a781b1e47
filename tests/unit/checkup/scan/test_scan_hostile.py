"""Files from strangers: truncated, lying, overlapping, exploding, malicious. One sentence, exit code 2, nothing run."""

from __future__ import annotations

import io
import json
import os
import pickle
import random
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from scan_specimens import scanned

from steadygrad.checkup.scan.scan import scan
from steadygrad.records.checks.scan import ScanVerdict


def refused(path: Path, *words: str) -> None:
    """The file at `path` cannot be read, and the one sentence about it holds these words."""
    report = scan([path])
    assert report.exit_code == 2, report
    problems = [problem for file in report.files for problem in file.problems]
    assert len(problems) == 1
    assert problems[0].endswith(".")
    assert "\n" not in problems[0]
    for word in words:
        assert word in problems[0]


# -- safetensors


def safetensors(header: Any, data: bytes = b"", *, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(shape: list[Any], begin: Any, end: Any, dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "too short"),
        (b"\0\0\0", "too short"),
        (safetensors(b"{}", length=1 << 62), "header claims 4,611,686,018,427,387,904 bytes"),
        (safetensors(b"{}", length=3), "header claims 3 bytes"),
        (safetensors(b"{nonsense"), "not JSON"),
        (safetensors(b"[" * 100_000), "not JSON"),
        (safetensors(b"[]"), "not a JSON object"),
        (safetensors(b'{"a": 1, "a": 2}'), "twice"),
        (safetensors({"a": 7}), "entry for tensor 'a' is damaged"),
        (safetensors({"a": entry([2], 0, 8, "F99")}, b"\0" * 8), "'F99', which is not known"),
        (safetensors({"a": entry([2], 0, 8)}, b"\0" * 7), "truncated"),
        (safetensors({"a": entry([3], 0, 8)}, b"\0" * 8), "the header lies"),
        (safetensors({"a": entry([2], 8, 0)}, b"\0" * 8), "make no sense"),
        (safetensors({"a": entry([2], -8, 0)}, b"\0" * 8), "make no sense"),
        (safetensors({"a": entry([-2], 0, 8)}, b"\0" * 8), "makes no sense"),
        (safetensors({"a": entry([1.5], 0, 8)}, b"\0" * 8), "makes no sense"),
        (safetensors({"a": entry([1 << 40, 1 << 40], 0, 8)}, b"\0" * 8), "more values than any file"),
        (safetensors({"a": entry([1] * 1000, 0, 4)}, b"\0" * 4), "makes no sense"),
        (safetensors({"a": entry([2], 0, 8), "b": entry([2], 4, 12)}, b"\0" * 12), "overlap"),
    ],
)
def test_a_safetensors_header_that_lies_is_refused(tmp_path: Path, data: bytes, words: str) -> None:
    path = tmp_path / "bad.safetensors"
    path.write_bytes(data)
    refused(path, "bad.safetensors", words)


# -- pickles


class Creates:
    """Unpickling this creates a file."""

    def __init__(self, path: Path, call: Callable[..., Any] = os.system) -> None:
        self.path, self.call = path, call

    def __reduce__(self) -> Any:
        if self.call is os.system:
            return os.system, (f"touch {self.path}",)
        if self.call is open:
            return open, (str(self.path), "w")
        return self.call, (f"open({str(self.path)!r}, 'w')",)


@pytest.mark.parametrize("call", [os.system, open, eval, exec], ids=lambda call: call.__name__)
@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_that_would_create_a_file_is_refused_and_creates_none(
    tmp_path: Path, call: Callable[..., Any], zipped: bool
) -> None:
    trap = tmp_path / "pwned"
    path = tmp_path / "model.pt"
    torch.save({"w": torch.ones(2), "x": Creates(trap, call)}, path, _use_new_zipfile_serialization=zipped)
    refused(path, "asks for", call.__name__, "should not be loaded")
    assert not trap.exists()


def test_the_trap_works_so_that_the_test_above_means_something(tmp_path: Path) -> None:
    trap = tmp_path / "pwned"
    torch.save({"x": Creates(trap)}, tmp_path / "model.pt")
    torch.load(tmp_path / "model.pt", weights_only=False)
    assert trap.exists()


class Lurks:
    """Unpickling this calls a name that nobody has put on a list."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return make_file, (str(self.path),)


def make_file(path: str) -> str:
    Path(path).touch()
    return path


def test_a_call_on_no_list_is_not_carried_out_either(tmp_path: Path) -> None:
    trap = tmp_path / "pwned"
    path = tmp_path / "model.pt"
    torch.save({"w": torch.tensor([float("nan")]), "x": Lurks(trap)}, path)
    found = scanned(path)
    assert not trap.exists()
    assert [finding.tensor for finding in found.findings] == ["w"]
    assert "make_file" in found.notes[0]


def test_the_metadata_of_a_distributed_checkpoint_is_not_carried_out_either(tmp_path: Path) -> None:
    trap = tmp_path / "pwned"
    folder = tmp_path / "dcp"
    folder.mkdir()
    (folder / "__0_0.distcp").write_bytes(b"")
    (folder / ".metadata").write_bytes(pickle.dumps(Creates(trap)))
    refused(folder, "asks for posix.system")
    (folder / ".metadata").write_bytes(pickle.dumps({"not": "metadata"}))
    refused(folder, "does not describe a distributed checkpoint")
    assert not trap.exists()


def archive(description: bytes, *, compress: bool = False, extra: dict[str, bytes] | None = None) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED) as target:
        target.writestr("archive/data.pkl", description)
        for name, data in (extra or {}).items():
            target.writestr(f"archive/{name}", data)
    return made.getvalue()


def tensor_pickle(
    *, key: str = "0", numel: int, offset: int = 0, size: tuple[int, ...], stride: tuple[int, ...]
) -> bytes:
    """What torch.save writes for one float32 tensor, with whatever numbers one likes in it."""

    class Storage:
        def __reduce__(self) -> Any:
            raise AssertionError

    class Tensor:
        def __reduce__(self) -> Any:
            return torch._utils._rebuild_tensor_v2, (Storage(), offset, size, stride, False, {})

    class Pickler(pickle.Pickler):
        def persistent_id(self, value: object) -> Any:
            return ("storage", torch.FloatStorage, key, "cpu", numel) if isinstance(value, Storage) else None

    made = io.BytesIO()
    Pickler(made, protocol=2).dump({"w": Tensor()})
    return made.getvalue()


def test_an_honest_archive_made_the_same_way_is_read(tmp_path: Path) -> None:
    path = tmp_path / "honest.pt"
    description = tensor_pickle(numel=4, size=(2, 2), stride=(2, 1))
    path.write_bytes(archive(description, extra={"data/0": struct.pack("<4f", 1, 2, float("nan"), 4)}))
    found = scanned(path)
    assert found.tensors[0].first_bad == (1, 0)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (archive(tensor_pickle(numel=1 << 28, size=(1 << 28,), stride=(1,)), compress=True), "is compressed"),
        (archive(tensor_pickle(numel=4, size=(4,), stride=(1,))), "are missing"),
        (archive(tensor_pickle(numel=4, size=(4,), stride=(1,)), extra={"data/0": b"\0" * 15}), "15 are there"),
        (archive(tensor_pickle(numel=4, size=(5,), stride=(1,)), extra={"data/0": b"\0" * 16}), "beyond its storage"),
        (
            archive(tensor_pickle(numel=4, size=(4,), stride=(1,), offset=-4), extra={"data/0": b"\0" * 16}),
            "description of tensor 'w' is damaged",
        ),
        (archive(tensor_pickle(numel=4, size=(-4,), stride=(1,)), extra={"data/0": b"\0" * 16}), "makes no sense"),
        (archive(b"\x80\x02}q\x00X\x01\x00\x00\x00a"), "damaged or cut short"),
        (archive(b"\x80\x02R."), "damaged or cut short"),
        (archive(b"\x80\x02(t"), "damaged or cut short"),
        (archive(b""), "damaged or cut short"),
        (archive(b"\x80\x05\x97."), "an instruction that no checkpoint uses"),
        (archive(b"\x80\x02]q\x00r\xff\xff\xff\x7f(h\x00e"), "damaged or cut short"),
        (archive(b"N.", extra={"byteorder": b"big"}), "big-endian"),
        (archive(b"N.")[:-30], "truncated"),
        (b"PK\x03\x04" + b"\0" * 100, "truncated"),
        (b"\x80\x02N.", "not one that torch.save wrote"),
        (b"\x80\x02", "damaged or cut short"),
        (b"hello, world", "no format that is known"),
        (b"", "is empty"),
    ],
)  # fmt: skip
def test_a_torch_file_that_lies_is_refused(tmp_path: Path, data: bytes, words: str) -> None:
    path = tmp_path / "bad.pt"
    path.write_bytes(data)
    refused(path, "bad.pt", words)


def test_an_archive_whose_members_overlap_is_refused(tmp_path: Path) -> None:
    data = bytearray(archive(b"N.", extra={"data/0": b"\0" * 64, "data/1": b"\0" * 64}))
    first, second = (i for i in range(len(data)) if data[i : i + 4] == b"PK\x01\x02" and b"data/" in data[i : i + 70])
    data[second + 42 : second + 46] = data[first + 42 : first + 46]  # both begin at the same place
    path = tmp_path / "bad.pt"
    path.write_bytes(data)
    refused(path, "overlap")


def test_an_archive_without_a_description_is_refused(tmp_path: Path) -> None:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as target:
        target.writestr("thesis.txt", "years of work")
    path = tmp_path / "thesis.pt"
    path.write_bytes(made.getvalue())
    refused(path, "without a data.pkl")


def test_a_tensor_that_claims_terabytes_by_a_stride_of_zero_costs_four_bytes(tmp_path: Path) -> None:
    path = tmp_path / "bomb.pt"
    torch.save({"w": torch.tensor([float("inf")]).expand(1 << 20, 1 << 20)}, path)
    found = scanned(path)
    assert [finding.code for finding in found.findings] == ["CK102"]
    assert found.tensors[0].num_values == 1


def test_a_description_that_refers_to_itself_ends(tmp_path: Path) -> None:
    loop: list[Any] = [1]
    loop.append(loop)
    laughs: list[Any] = ["ha"]
    for _ in range(60):
        laughs = [laughs, laughs]  # 2 to the 60th, if it were unfolded
    path = tmp_path / "loops.pt"
    path.write_bytes(archive(pickle.dumps({"loop": loop, "laughs": laughs}, protocol=2)))
    assert scanned(path).verdict is ScanVerdict.CLEAN


# -- indexes, folders, the file system


@pytest.mark.parametrize("name", ["../secret.safetensors", "/etc/passwd", "..", "", "a/b.safetensors", "a\\b", "a\0b"])
def test_an_index_cannot_lead_out_of_its_folder(tmp_path: Path, name: str) -> None:
    save_file({"w": torch.full((2,), float("nan"))}, tmp_path / "secret.safetensors")
    folder = tmp_path / "model"
    folder.mkdir()
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"w": name}}))
    refused(index, "not in its own folder")
    refused(folder, "not in its own folder")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": 3}', '{"weight_map": {"a": 1}}', "[" * 100_000])
def test_an_index_that_is_none_is_said(tmp_path: Path, text: str) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(text)
    refused(index, "is not an index of shards")


def test_what_is_not_there_or_holds_nothing_is_said(tmp_path: Path) -> None:
    refused(tmp_path / "no.pt", "does not exist")
    (tmp_path / "notes.txt").write_text("nothing here")
    refused(tmp_path, "holds no checkpoint")


def test_a_pipe_is_not_waited_for_and_a_loop_of_links_ends(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.pt")
    refused(tmp_path / "pipe.pt", "not a regular file")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "again").symlink_to(folder, target_is_directory=True)
    (folder / "gone.pt").symlink_to(folder / "nowhere.pt")
    refused(folder, "cannot be opened: no such file")


def test_a_link_to_a_file_is_followed_as_model_caches_need(tmp_path: Path) -> None:
    save_file({"w": torch.full((2,), float("nan"))}, tmp_path / "blob")
    folder = tmp_path / "snapshot"
    folder.mkdir()
    (folder / "model.safetensors").symlink_to(tmp_path / "blob")
    assert scan([folder]).exit_code == 1


def test_a_file_one_may_not_read_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may read everything, so the refusal of the system is played."""
    path = tmp_path / "private.safetensors"
    save_file({"w": torch.ones(2)}, path)
    true_open = os.open

    def guarded(name: Any, *rest: Any, **more: Any) -> int:
        if str(name) == str(path):
            raise PermissionError(13, "Permission denied", str(name))
        return true_open(name, *rest, **more)

    monkeypatch.setattr(os, "open", guarded)
    refused(path, "cannot be opened: permission denied")


def test_a_file_cut_short_while_it_is_read_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "shrinking.safetensors"
    save_file({"w": torch.ones(100)}, path)
    true_read = os.preadv

    def cut_then_read(descriptor: int, buffers: Any, offset: int) -> int:
        os.truncate(path, 120)
        return true_read(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", cut_then_read)
    refused(path, "cut short while it was being read")


def test_no_damage_to_a_real_file_gets_more_than_a_sentence(tmp_path: Path) -> None:
    """Bytes flipped and tails cut at random: clean, poisoned or one sentence, and never an exception."""
    state = {"a.weight": torch.randn(8, 4), "a.bias": torch.randn(4).half(), "step": torch.tensor(3)}
    originals = []
    for name in ("x.safetensors", "x.pt", "old.pt"):
        path = tmp_path / name
        if name.endswith("safetensors"):
            save_file(state, path)
        else:
            torch.save(state, path, _use_new_zipfile_serialization=name == "x.pt")
        originals.append((path, path.read_bytes()))
    rng = random.Random(0)
    verdicts = set()
    for path, data in originals:
        for _ in range(150):
            broken = bytearray(data[: rng.choice((len(data), rng.randrange(len(data) + 1)))])
            for _ in range(rng.randrange(4) if broken else 0):
                broken[rng.randrange(len(broken))] ^= 1 << rng.randrange(8)
            path.write_bytes(broken)
            found = scan([path])
            verdicts.add(found.verdict)
            assert all(len(file.problems) <= 1 for file in found.files)
    assert {ScanVerdict.CLEAN, ScanVerdict.UNREADABLE} <= verdicts

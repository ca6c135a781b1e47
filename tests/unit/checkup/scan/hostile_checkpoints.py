"""Hostile checkpoints, as bytes. None of them is ever loaded: a scan reads what they ask for and does nothing of it."""

from __future__ import annotations

import io
import json
import pickle
import struct
import zipfile
from collections.abc import Callable
from typing import Any


def archive(description: bytes, extra: dict[str, bytes] | None = None) -> bytes:
    """What torch.save writes around a pickle."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_STORED) as target:
        target.writestr("archive/data.pkl", description)
        for name, data in (extra or {}).items():
            target.writestr(f"archive/{name}", data)
    return made.getvalue()


def text(value: str) -> bytes:
    data = value.encode()
    return b"X" + struct.pack("<I", len(data)) + data


def call(module: str, name: str, *arguments: str) -> bytes:
    """The instructions that call a name, also one with dots in it, with texts."""
    return text(module) + text(name) + b"\x93(" + b"".join(text(argument) for argument in arguments) + b"tR"


def payload(body: bytes) -> bytes:
    return archive(b"\x80\x04" + body + b".")


def tensor(*, claimed: int, size: int) -> bytes:
    """What torch.save writes for a float32 tensor of `size` values in a storage said to have `claimed`."""
    import torch

    class Storage:
        pass

    class Tensor:
        def __reduce__(self) -> Any:
            return torch._utils._rebuild_tensor_v2, (Storage(), 0, (size,), (1,), False, {})

    class Pickler(pickle.Pickler):
        def persistent_id(self, value: object) -> Any:
            return ("storage", torch.FloatStorage, "0", "cpu", claimed) if isinstance(value, Storage) else None

    made = io.BytesIO()
    Pickler(made, protocol=2).dump({"w": Tensor()})
    return made.getvalue()


def safetensors(header: Any, data: bytes = b"") -> bytes:
    header = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(header)) + header + data


def entry(begin: int, end: int, dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": [(end - begin) // 4], "data_offsets": [begin, end]}


def gguf(num_tensors: int, num_entries: int, body: bytes) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, num_tensors, num_entries) + body


def gguf_text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


MANY = 9_000_000
EXPENSIVE: dict[str, Callable[[], bytes]] = {
    "nested_lists.pt": lambda: payload(b"]" * MANY + b"a" * (MANY - 1)),
    "nested_tuples.pt": lambda: payload(b"N" + b"\x85" * MANY),
    "nested_calls.pt": lambda: payload(text("a") + text("B") + b"\x93\x94" + b"N" + b"\x85h\x00\x94" * (MANY // 3)),
    "nested_a_little_less.pt": lambda: payload(b"N" + b"\x85" * 590_000),
    "marks.pt": lambda: payload(b"(" * MANY),
    "pushed_and_popped.pt": lambda: payload(b"N0" * MANY),
    "pushed.pt": lambda: payload(b"N" * MANY),
    "numbers.pt": lambda: payload(b"](" + (b"G" + b"\x3f" * 8) * 99_000 + b"e" + b"0](" * 3 + b"N" * MANY),
    "memo.pt": lambda: payload(b"N" + b"\x94" * MANY),
    "far_memo.pt": lambda: payload(b"Nr\xff\xff\xff\x7f" * 100_000 + b"r\xff"),
    "texts.pt": lambda: payload(b"](" + text("a" * 16) * 99_000 + b"e" + (text("a" * 16) + b"0") * 2_000_000),
    "long_text.pt": lambda: payload(b"X" + struct.pack("<I", 60 << 20) + b"a" * (60 << 20) + b"R"),
    "long_number.pt": lambda: payload(b"\x8b" + struct.pack("<i", 30 << 20) + b"\x7f" * (30 << 20) + b"R"),
    "dictionaries.pt": lambda: payload(b"}" + (b"(" + b"NN" * 40_000 + b"u") * 100),
    "old_flood.pt": lambda: b"\x80\x02" + b"N0" * MANY,
    "header_of_lists.safetensors": lambda: safetensors(b'{"a":[' + b"[]," * MANY + b"[]]}"),
    "header_of_tensors.safetensors": lambda: safetensors(
        b"{" + b",".join(b'"%d":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}' % n for n in range(400_000)) + b"}"
    ),
    "long.safetensors.index.json": lambda: (
        b'{"weight_map":{' + b",".join(b'"%d":"a"' % n for n in range(3_000_000)) + b"}}"
    ),
    "vocabulary.gguf": lambda: gguf(
        0, 1, gguf_text(b"k") + struct.pack("<IIQ", 9, 8, 10_000_000) + gguf_text(b"") * 10_000_000
    ),
    "nested_arrays.gguf": lambda: gguf(
        0, 1, gguf_text(b"k") + struct.pack("<IIQ", 9, 9, 8_000_000) + struct.pack("<IQ", 0, 0) * 8_000_000
    ),
    "tensors.gguf": lambda: gguf(
        65_000, 0, (gguf_text(b"t") + struct.pack("<IQQQIQ", 3, 1, 1, 1, 0, 0)) * 65_000
    ),
    "vocabulary_a_little_less.gguf": lambda: gguf(
        0, 2, gguf_text(b"k") + struct.pack("<IIQ", 9, 8, 990_000) + gguf_text(b"") * 990_000
    ),
    "arrays_a_little_less.gguf": lambda: gguf(
        0, 2, gguf_text(b"k") + struct.pack("<IIQ", 9, 9, 9_900) + struct.pack("<IQ", 0, 0) * 9_900
    ),
    "entries.gguf": lambda: gguf(0, 90_000, (gguf_text(b"k") + struct.pack("<IIQ", 9, 0, 0)) * 90_000),
    "members.pt": lambda: archive(b"N.", {f"data/{n}": b"" for n in range(190_000)}),
    "header_a_little_less.safetensors": lambda: safetensors(
        b"{" + b",".join(b'"%d":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}' % n for n in range(99_000)) + b"}",
        b"!",
    ),
    "index_a_little_less.safetensors.index.json": lambda: json.dumps(
        {"weight_map": {f"model.layers.{n}.weight": "model-00001.safetensors" for n in range(190_000)}}
    ).encode(),
}  # fmt: skip
"""Checkpoints made to take time or memory: floods that are far over a limit, and files that are just under one."""

DECEIVING: dict[str, tuple[Callable[[], bytes], str]] = {
    "os_through_torch.pt": (lambda: payload(call("torch", "serialization.os.system", "true")), "serialization.os"),
    "os_of_a_module_of_torch.pt": (lambda: payload(call("torch.serialization", "os.system", "true")), "os.system"),
    "function_through_torch.pt": (lambda: payload(call("torch", "hub.urlopen", "x")), "torch.hub.urlopen"),
    "through_numpy.pt": (lambda: payload(call("numpy", "lib.npyio.load", "x")), "numpy.lib.npyio.load"),
    "globals_of_a_function.pt": (
        lambda: payload(call("torch.nn", "Module.forward.__globals__.get", "x")), "Module.forward.__globals__",
    ),
    "loaded_again.pt": (lambda: payload(call("torch.storage", "_load_from_bytes", "x")), "_load_from_bytes"),
    "source_of_torch.pt": (
        lambda: payload(call("torch.jit.unsupported_tensor_ops", "execWrapper", "x")), "execWrapper",
    ),
    "attribute_called.pt": (
        lambda: payload(
            text("builtins") + text("getattr") + b"\x93" + text("a") + text("Thing") + b"\x93" + text("f") + b"\x86R)R"
        ),
        "calls something that it first computes",
    ),
    "attribute_of_a_module.pt": (
        lambda: payload(
            text("builtins") + text("getattr") + b"\x93" + text("torch") + text("hub") + b"\x93" + text("x") + b"\x86R"
        ),
        "first computes",
    ),
    "changes_a_class.pt": (
        lambda: payload(text("torch.nn") + text("Module") + b"\x93}" + text("forward") + b"Nsb"), "it changes torch.nn",
    ),
    "storage_claims_more.pt": (
        lambda: archive(tensor(claimed=1 << 40, size=4), {"data/0": b"\0" * 16}), "is said to have 4,398,046,511,104",
    ),
    "storage_claims_less.pt": (
        lambda: archive(tensor(claimed=4, size=4), {"data/0": b"\0" * 16 + b"\xff" * 4096}), "4,112 are there",
    ),
    "absurd_number.pt": (lambda: archive(tensor(claimed=1 << 40_000, size=4), {"data/0": b"\0" * 16}), "is damaged"),
    "type_is_a_list.safetensors": (lambda: safetensors({"a": entry(0, 4, ["F32"])}, b"\0" * 4), "is no text"),
    "hole.safetensors": (
        lambda: safetensors({"a": entry(0, 4), "b": entry(8, 12)}, b"\0" * 12), "belong to no tensor",
    ),
    "hole_first.safetensors": (lambda: safetensors({"a": entry(4, 8)}, b"\xff" * 8), "belong to no tensor"),
    "more_at_the_end.safetensors": (lambda: safetensors({"a": entry(0, 4)}, b"\xff" * 8), "belong to no tensor"),
    "no_tensor.safetensors": (lambda: safetensors({}, b"\xff" * 8), "belong to no tensor"),
    "long_name.safetensors.index.json": (
        lambda: json.dumps({"weight_map": {"a": "x" * 5000}}).encode(), "which is missing",
    ),
    "odd_name.safetensors.index.json": (lambda: b'{"weight_map": {"a": "\\ud800"}}', "which is missing"),
    "type_not_known.gguf": (
        lambda: gguf(1, 0, gguf_text(b"t") + struct.pack("<IQIQ", 1, 32, 99, 0)).ljust(64, b"\0") + b"\xff" * 64,
        "GGML type that is not known",
    ),
}  # fmt: skip
"""Checkpoints that ask for code, or whose values cannot all be looked at, and words of the sentence about each."""

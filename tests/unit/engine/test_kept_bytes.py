"""What is kept of batches is bounded in bytes, counted by the memory that stays alive."""

from __future__ import annotations

import os
import random
import resource
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn

from steadygrad.engine.record import memory_use
from steadygrad.engine.state import batch_buffer, kept_bytes
from steadygrad.engine.state.batch_buffer import BatchBuffer
from steadygrad.engine.state.forward_state import ForwardState
from steadygrad.engine.state.kept_bytes import KeptBytes, fit, pieces_of
from steadygrad.engine.state.pinned_memory import PinnedPool
from steadygrad.engine.state.rng import same_rng, take_rng

MIB = 1 << 20
NEEDS_PROC = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="file descriptors are counted by /proc")


@pytest.fixture
def allow_bytes(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Lets so many bytes be kept."""
    monkeypatch.setattr(batch_buffer, "_ALWAYS", 0)

    def allow(num_bytes: int) -> None:
        monkeypatch.setattr(kept_bytes, "_allowed", {})
        monkeypatch.setattr(kept_bytes, "_MOST", {kept_bytes.HOST: num_bytes, kept_bytes.DEVICE: num_bytes})

    return allow


def size_of(value: Any) -> int:
    return sum(pieces_of(value).values())


@dataclass
class Sample:
    x: Tensor
    notes: list[str] = field(default_factory=list)


class Slotless:
    def __init__(self, x: Any) -> None:
        self.x = x


TABLE = torch.zeros(1000)


@pytest.mark.parametrize(
    ("value", "num_bytes"),
    [
        (torch.zeros(10), 40),
        ((TABLE[:3], {"y": TABLE[5:]}), 4000),
        (numpy.zeros(10), 80),
        ([numpy.zeros((100, 2))[:3]], 1600),
        (Sample(torch.zeros(5)), 20),
        (Slotless(Slotless([torch.zeros(5)])), 20),
        ([torch.zeros(25) for _ in range(320)], 32000),
        (nn.Linear(10, 10), 0),
        (torch.eye(5).to_sparse(), 100),
        (None, 0),
        (lambda: TABLE, 0),
    ],
    ids=["tensor", "views", "array", "view of an array", "dataclass", "objects", "long list", "model", "sparse", "none",
         "function"],
)  # fmt: skip
def test_memory_is_counted_by_what_stays_alive(value: Any, num_bytes: int) -> None:
    assert size_of(value) == num_bytes


def test_a_list_that_holds_itself_is_counted_in_the_end() -> None:
    endless: list[Any] = [torch.zeros(2)]
    endless += [endless] * 40
    assert size_of(endless) >= 8


def test_a_piece_counts_once_as_long_as_one_value_has_it() -> None:
    kept, first, second = KeptBytes(), pieces_of((TABLE[:3], torch.zeros(1))), pieces_of(TABLE[3:])
    kept.add(first)
    kept.add(second)
    assert kept.bytes["host"] == 4004
    kept.remove(first)
    assert kept.bytes["host"] == 4000
    kept.remove(second)
    assert kept.bytes["host"] == 0


def test_less_is_kept_where_the_host_has_little_left(monkeypatch: pytest.MonkeyPatch) -> None:
    for free, expected in ((1 << 40, 256 * MIB), (160 * MIB, 10 * MIB), (0, 0)):
        monkeypatch.setattr(kept_bytes, "_allowed", {})
        monkeypatch.setattr(kept_bytes, "free_host_bytes", lambda free=free: free)
        assert kept_bytes.allowed_bytes(kept_bytes.HOST) == expected
    assert not fit([pieces_of(torch.zeros(1))])


@pytest.mark.parametrize(
    ("line", "folder", "files"),
    [
        ("0::/job/step", "job", ("memory.max", "memory.current")),
        ("4:cpu,memory:/job/step", "memory/job", ("memory.limit_in_bytes", "memory.usage_in_bytes")),
    ],
)
def test_the_limit_of_a_container_or_job_counts(line: str, folder: str, files: tuple[str, str], tmp_path: Path) -> None:
    inside = tmp_path / folder
    (inside / "step").mkdir(parents=True)
    (inside / files[0]).write_text("1000\n")
    (inside / files[1]).write_text("900\n")
    (inside / "memory.stat").write_text("anon 600\ninactive_file 300\n")
    (inside / "step" / files[0]).write_text("max\n")
    processes = tmp_path / "cgroup"
    processes.write_text(f"7:pids:/\n{line}\n")
    assert list(memory_use._free_in_containers(str(processes), str(tmp_path))) == [400]
    assert list(memory_use._free_in_containers(str(tmp_path / "none"), str(tmp_path))) == []
    assert 0 < memory_use.free_host_bytes() < 1 << 50


@pytest.mark.parametrize("kind", ["tensor", "array", "object", "view"])
def test_the_batches_of_a_guard_are_bounded_in_bytes(kind: str, allow_bytes: Callable[[int], None]) -> None:
    allow_bytes(2 * MIB)
    made: dict[str, Callable[[], Any]] = {
        "tensor": lambda: torch.zeros(MIB // 4),
        "array": lambda: {"x": numpy.zeros(MIB // 8), "n": 3},
        "object": lambda: Slotless(torch.zeros(MIB // 4)),
        "view": lambda: torch.zeros(MIB // 4)[:8],
    }
    buffer = BatchBuffer()
    for step in range(50):
        buffer.put(step, made[kind](), str(step))
    assert len(buffer) == 4
    assert buffer.since(45) is None
    assert buffer.since(46) is not None


def test_batches_cut_out_of_one_large_tensor_are_kept(allow_bytes: Callable[[int], None]) -> None:
    allow_bytes(MIB)
    table, buffer = torch.zeros(100, MIB // 16), BatchBuffer()
    for step in range(3):
        buffer.put(step, (table[step : step + 2],), str(step))
    assert buffer.since(1) is not None


def test_free_pinned_memory_is_bounded_whatever_sizes_come() -> None:
    pool = PinnedPool(lambda: 4 * MIB, pin=False)
    for power in (*range(12, 22), *range(21, 11, -1)):
        taken = [pool.like(torch.empty((1 << power) // 4))[0] for _ in range(max(1, (3 * MIB) >> power))]
        assert pool.bytes <= 8 * MIB  # what is in use may lie in chunks of twice the size
        pool.give_back(taken)
    assert len({id(chunk) for chunks in pool._spare.values() for chunk in chunks}) <= len(pool._last)


class Drawing(nn.Module):
    """A model whose forward draws."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)


def test_the_random_states_of_many_calls_in_one_window_are_bounded() -> None:
    forward = ForwardState([Drawing()])
    for _ in range(4):
        forward.take()
        forward.left()
        for _ in range(3000):
            random.random()
            forward.took_again()
            forward.left()
    assert len(forward._stretches) < 5000


def test_calls_between_which_no_one_draws_share_their_random_states() -> None:
    forward = ForwardState([Drawing()])
    before = forward.take()
    for _ in range(100):
        torch.rand(1)
        forward.left()
        forward.took_again()
    forward.left()
    assert len(forward._stretches) == 1
    assert same_rng(forward.rng_without(before.place), before.rng)


def test_what_other_code_draws_between_two_calls_stays_drawn() -> None:
    forward = ForwardState([Drawing()])
    before = forward.take()
    torch.rand(1)
    forward.left()
    torch.rand(1)
    expected = take_rng()
    forward.took_again()
    torch.rand(1)
    forward.left()
    rewound = forward.rng_without(before.place)
    assert same_rng(rewound, expected)
    assert not same_rng(rewound, before.rng)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def few_descriptors(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The limit of file descriptors that most systems begin a process with."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = 1024 if hard == resource.RLIM_INFINITY else min(1024, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (few, hard))
    monkeypatch.setattr(kept_bytes, "_allowed", {})
    yield few
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@NEEDS_PROC
@pytest.mark.parametrize("nested", [False, True], ids=["a tuple", "lists of dictionaries"])
def test_batches_in_shared_memory_leave_most_file_descriptors_to_the_program(
    few_descriptors: int, nested: bool
) -> None:
    batches, before = BatchBuffer(), descriptors()
    for step in range(300):
        parts = [torch.zeros(3).share_memory_() for _ in range(4)]  # as a worker of a loader hands them over
        batches.put(step, [{"boxes": part} for part in parts] if nested else tuple(parts), str(step))
    assert len(batches) > 1
    assert descriptors() - before <= few_descriptors // 4 + 8


@NEEDS_PROC
def test_what_a_queue_keeps_in_shared_memory_is_too_much_before_file_descriptors_run_out(few_descriptors: int) -> None:
    kept, values = KeptBytes(), []
    while not kept.too_many:
        values.append(torch.zeros(3).share_memory_())
        kept.add(pieces_of(values[-1]))
    assert few_descriptors // 10 < len(values) <= few_descriptors // 8 + 1


def test_of_a_small_shared_memory_most_is_left_to_the_workers_of_loaders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_bytes, "_allowed", {})
    found = os.statvfs("/dev/shm")
    small = os.statvfs_result([found.f_bsize, 4096, 4 * MIB // 4096, *found[3:]])
    monkeypatch.setattr(os, "statvfs", lambda _path: small)  # 4 MiB, as a container may have 64
    kept, batches = KeptBytes(), BatchBuffer()
    for step in range(40):
        batch = torch.zeros(64, 1024).share_memory_()  # a quarter MiB
        if not kept.too_many:
            kept.add(pieces_of(batch))
        batches.put(step, (batch,), str(step))
    assert 1 < len(kept._kept) <= 3
    assert 1 < len(batches) <= 4
    own = [torch.zeros(64, 1024) for _ in range(40)]
    assert fit([pieces_of(each) for each in own])


def test_a_device_is_asked_anew_each_time_until_the_program_has_shown_what_it_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    free = [1 << 33]
    now = [100.0]
    monkeypatch.setattr(kept_bytes, "_allowed", {})
    monkeypatch.setattr(kept_bytes, "_first_look", 0.0)
    monkeypatch.setattr(kept_bytes, "free_device_bytes", lambda: free[0])
    monkeypatch.setattr(kept_bytes.time, "monotonic", lambda: now[0])
    before = kept_bytes.allowed_bytes(kept_bytes.DEVICE)
    free[0] = 1 << 20  # the optimizer has made its moments
    assert kept_bytes.allowed_bytes(kept_bytes.DEVICE) < before
    now[0] += 60.0
    small = kept_bytes.allowed_bytes(kept_bytes.DEVICE)
    free[0] = 1 << 33
    now[0] += 1.0
    assert kept_bytes.allowed_bytes(kept_bytes.DEVICE) == small, "later it is asked every few seconds"

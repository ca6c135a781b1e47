"""`steady watch`: one look as text and JSON, and the live view driven by its keys as a person drives it."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import math
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import torch
from made_runs import CLOSING, Call, write_long_run
from rich.text import Text
from textual.pilot import Pilot
from textual.widgets import OptionList, Static

import steadygrad as sg
from steadygrad.journal import Journal
from steadygrad.records import StepRecord
from steadygrad.records.errors import UsageError
from steadygrad.reporters.live_view.app import WatchApp
from steadygrad.reporters.live_view.curves import Curve, Powers, Steps
from steadygrad.reporters.live_view.text_strips import bars, heat_lines
from steadygrad.reporters.run_data.norm_matrix import NormMatrix

Drive = Callable[[WatchApp, Pilot[None]], Awaitable[None]]


def drive(run: Path, what: Drive, *, size: tuple[int, int] = (130, 40), every: float = 0.2) -> None:
    """Runs the view without a terminal until `what` has done its work."""

    async def scene() -> None:
        app = WatchApp(run, every=every)
        async with app.run_test(size=size) as pilot:
            await until(pilot, lambda: app.story is not None)
            await what(app, pilot)

    asyncio.run(scene())


async def until(pilot: Pilot[None], met: Callable[[], bool]) -> None:
    """Waits for a condition and for no clock; the suite's own limit ends it if it never comes."""
    while not met():
        await pilot.pause(0.02)


def words(app: WatchApp, name: str) -> str:
    content = app.query_one(f"#{name}", Static).content
    return content.plain if isinstance(content, Text) else str(content)


# -- one look


def test_one_look_tells_state_numbers_and_incidents(guarded_run: Path, call: Call) -> None:
    code, out, _ = call("watch", guarded_run, "--once")
    assert code == 0
    assert "ratio  ended at step 59" in out
    assert "3 of 60 updates refused" in out
    assert "applied 95 % of the last 100, 95 % of all" in out
    assert "no. 1     step 20: the loss is nan; div by an exact zero in the model itself; " in out
    assert "no. 2     step 30" in out
    assert "\x1b" not in out


def test_one_look_calls_a_silent_error_one_and_shows_no_loss_that_was_not_seen(tmp_path: Path, call: Call) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with sg.attach(optimizer, model=model, run_dir=tmp_path / "run"):
        for _ in range(8):
            model(torch.randn(8, 4)).pow(2).mean().backward()
            optimizer.step()
    lines = call("watch", tmp_path / "run", "--once")[1].splitlines()
    assert "Silent error: gradients were not cleared since the last update" in lines[1]
    assert "loss      not recorded" in [line.strip() for line in lines]
    (incident,) = [line for line in lines if line.startswith("  no. 1")]
    assert incident.count("gradients were not cleared") == 1


def test_one_look_as_json_is_json_with_the_newest_numbers(long_run: Path, call: Call) -> None:
    code, out, _ = call("watch", long_run, "--once", "--json")
    assert code == 0
    told = json.loads(out)
    assert (told["state"], told["step"], told["steps"], told["refused"]) == ("ended", 4999, 5000, 4)
    assert told["success_rate"] == pytest.approx(4996 / 5000)
    assert [incident["first_step"] for incident in told["incidents"]] == [812, 2400, 2401, 4100]
    cause, remedy = told["incidents"][0]["diagnosis"].split("; ")
    assert cause == "matmul of finite float16 numbers left the range of float16 in layers.1.attn"
    assert remedy == "verified remedy: layers.1.attn in float32"
    assert told["ranks"][0]["rank"] == 0
    assert told["steps_per_second"] == pytest.approx(2.0)


def test_a_pipe_gets_one_look(long_run: Path, call: Call) -> None:
    code, out, _ = call("watch", long_run)
    assert code == 0
    assert "five-thousand  ended at step 4,999" in out


def test_a_run_without_steps_waits(tmp_path: Path, call: Call) -> None:
    with Journal(tmp_path / "run"):
        code, out, _ = call("watch", tmp_path / "run", "--once")
    assert code == 0
    assert "running, waiting for its first step" in out


def test_hostile_names_cannot_move_the_terminal(tmp_path: Path, call: Call) -> None:
    with Journal(tmp_path / "run", names=["a\x1b[2J", CLOSING]) as journal:
        for step in range(3):
            journal.step(StepRecord(run="r", step=step, loss=1.0, grad_norm=1.0, norms=[1.0, 2.0]))
        journal.event("vitals", code="\x1b[31m", step="\u202e", detail="\x07bell")
    code, out, _ = call("watch", tmp_path / "run", "--once")
    assert code == 0
    assert not set("\x1b\u202e\x07") & set(out)


def test_without_textual_the_live_view_is_one_sentence(long_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from steadygrad.reporters.live_view.open_view import show

    monkeypatch.delitem(sys.modules, "steadygrad.reporters.live_view.app", raising=False)
    monkeypatch.setitem(sys.modules, "textual", None)
    monkeypatch.setitem(sys.modules, "textual.app", None)
    with pytest.raises(
        UsageError, match=r'pip install "steadygrad\[watch\]"`, or look once with `steady watch --once`'
    ):
        show(long_run, every=1.0)


# -- pictures of one line


def test_bars_rise_with_the_values_and_mark_where_there_are_none() -> None:
    assert bars([1.0, 10.0, 1e7, math.nan], width=4) == "▁▂█x"
    assert bars([0.0, 1.0], width=9, utf=False) == "_@"
    assert bars([], width=5) == ""
    assert bars([math.nan], width=5) == "x"


def test_a_heat_strip_marks_what_is_not_finite_and_fits_its_width() -> None:
    import numpy as np

    heat = NormMatrix()
    matrix = np.ones((50, 12), dtype=np.float32)
    matrix[25, 3] = math.nan
    heat.add(np.arange(50), matrix, [f"layers.{index}.weight" for index in range(12)])
    for rows in (3, 5, 12):
        lines = heat_lines(heat, rows=rows, width=60)
        assert 1 <= len(lines) <= rows
        assert all(line.cell_len <= 60 for line in lines)
        assert sum("!" in line.plain for line in lines) == 1
    assert heat_lines(NormMatrix(), rows=3, width=60) == []


def test_ticks_of_a_log_axis_are_the_numbers_themselves() -> None:
    ticks = Powers().get_ticks(-1.2, 2.1)
    assert ticks == pytest.approx([-1, 0, 1, 2])
    assert Powers().get_labels_for_ticks(ticks) == ["0.1", "1", "10", "100"]
    assert len(Powers().get_ticks(-30.0, 30.0)) <= 9


@pytest.mark.parametrize(("first", "last"), [(0, 1), (0, 200_000), (199_700, 199_999), (5, 12)])
@pytest.mark.parametrize("width", [12, 25, 60, 200])
def test_labels_of_steps_do_not_touch_each_other(first: int, last: int, width: int) -> None:
    ticks = Steps(width).get_ticks(first, last)
    labels = Steps(width).get_labels_for_ticks(ticks)
    assert all(float(label.replace(",", "")) == tick for label, tick in zip(labels, ticks, strict=True))
    columns = [width * (tick - first) / (last - first) for tick in ticks]
    for here, there, label in zip(columns, columns[1:], labels[1:], strict=False):
        assert there - here > len(label)


# -- the live view


def test_the_view_starts_at_the_incident_that_was_diagnosed(long_run: Path) -> None:
    async def scene(app: WatchApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: "incident 1" in words(app, "detail"))
        assert "five-thousand  ended at step 4,999" in words(app, "state")
        assert "refused 4" in words(app, "numbers")
        assert app.query_one(OptionList).option_count == 4
        assert "verified" in words(app, "detail")
        assert "not diagnosed" not in words(app, "detail")
        assert words(app, "layers").count("!") >= 3
        for name in ("loss", "grad_norm"):
            assert app.query_one(f"#{name}", Curve)._datasets

    drive(long_run, scene)


def test_the_command_takes_over_a_terminal_and_gives_it_back(long_run: Path) -> None:
    """The whole way: a real process on a real (pseudo) terminal, a key, and a clean end."""
    mine, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 130, 0, 0))
    command = [sys.executable, "-m", "steadygrad.commands", "watch", str(long_run)]
    env = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES")} | {
        "TERM": "xterm-256color"
    }
    watcher = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=env, start_new_session=True)
    os.close(theirs)
    seen = b""
    try:
        while b"ended at step 4,999" not in seen and (chunk := os.read(mine, 65536)):
            seen += chunk
        os.write(mine, b"q")
        with contextlib.suppress(OSError):  # the other end is gone: it has ended
            while chunk := os.read(mine, 65536):
                seen += chunk
        assert watcher.wait(timeout=120) == 0
    finally:
        watcher.kill()
        watcher.wait()
        os.close(mine)
    assert b"gradient norm" in seen
    assert b"\x1b[?1049h" in seen  # the screen it borrowed
    assert seen.rindex(b"\x1b[?1049l") > seen.rindex(b"\x1b[?1049h")  # and gave back


def test_keys_move_through_the_incidents(long_run: Path) -> None:
    async def scene(app: WatchApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: "incident 1" in words(app, "detail"))
        await pilot.press("n", "n", "n")
        await until(pilot, lambda: "incident 4" in words(app, "detail"))
        assert "incident 1 is of the same kind" in words(app, "detail")
        await pilot.press("p", "p")
        await until(pilot, lambda: "incident 2" in words(app, "detail"))
        for told in (
            "left the range of float16 in layers.1.attn (DX101)",
            "query @ key",
            "steady explain DX101",
            "verified",
        ):
            assert told in words(app, "detail")
        await pilot.press("n")
        await until(pilot, lambda: "incident 3" in words(app, "detail"))
        await pilot.press("up", "up")
        await until(pilot, lambda: "incident 1" in words(app, "detail"))
        await pilot.press("p")
        await until(pilot, lambda: "incident 1" in words(app, "detail"))

    drive(long_run, scene)


def test_looks_that_overlap_count_no_row_twice(long_run: Path) -> None:
    async def scene(app: WatchApp, pilot: Pilot[None]) -> None:
        for _ in range(20):
            app.look()
        await until(pilot, lambda: app.looks >= 3)
        await app.workers.wait_for_complete()
        assert app.story is not None
        assert app.story.counts.steps == 5000

    drive(long_run, scene, every=0.05)


def test_the_view_follows_a_run_that_goes_on(tmp_path: Path) -> None:
    with Journal(tmp_path / "run", names=["w"]) as journal:
        journal.step(StepRecord(run="r", step=0, loss=1.0, grad_norm=1.0, norms=[1.0]))
        assert journal.flush(60.0)

        async def scene(app: WatchApp, pilot: Pilot[None]) -> None:
            await until(pilot, lambda: "step 0 " in words(app, "numbers"))
            assert "no incident" in words(app, "detail")
            for step in range(1, 8):
                journal.step(StepRecord(run="r", step=step, loss=1.0, grad_norm=1.0, norms=[1.0]))
            assert journal.flush(60.0)
            await until(pilot, lambda: "step 7 " in words(app, "numbers"))
            assert "running" in words(app, "state")
            journal.close()
            await until(pilot, lambda: "ended at step 7" in words(app, "state"))

        drive(tmp_path / "run", scene)


def test_pausing_stops_the_looks(long_run: Path) -> None:
    async def scene(app: WatchApp, pilot: Pilot[None]) -> None:
        await pilot.press("space")
        assert "paused" in words(app, "state")
        await app.workers.wait_for_complete()
        looks = app.looks
        app.look()
        await app.workers.wait_for_complete()
        assert app.looks == looks
        await pilot.press("space")
        app.look()
        await until(pilot, lambda: app.looks > looks)
        assert "paused" not in words(app, "state")

    drive(long_run, scene)


def test_another_rank_is_a_key_away(tmp_path: Path) -> None:
    for rank in (0, 1, 2):
        write_long_run(tmp_path / "run", steps=40 + rank, tensors=3, rank=rank, seed=rank)

    async def scene(app: WatchApp, pilot: Pilot[None]) -> None:
        assert "rank 0 of 3" in words(app, "state")
        for rank, last in ((1, 40), (2, 41), (0, 39)):
            await pilot.press("r")
            assert f"rank {rank} of 3" in words(app, "state")
            assert f"step {last} " in words(app, "numbers")

    drive(tmp_path / "run", scene)


def test_the_last_steps_can_be_looked_at_closely(long_run: Path) -> None:
    async def scene(app: WatchApp, pilot: Pilot[None]) -> None:
        curve = app.query_one("#loss", Curve)
        assert curve._x_min == 0
        await pilot.press("z")
        assert (curve._x_min, curve._x_max) == (4700, 4999)
        await pilot.press("z")
        assert curve._x_min == 0

    drive(long_run, scene)


def test_a_run_that_vanishes_is_a_sentence_and_not_a_crash(tmp_path: Path) -> None:
    run = write_long_run(tmp_path / "run", steps=20, tensors=2)

    async def scene(app: WatchApp, pilot: Pilot[None]) -> None:
        run.rename(tmp_path / "moved")
        await until(pilot, lambda: "does not exist" in words(app, "state"))
        (tmp_path / "moved").rename(run)
        await until(pilot, lambda: "ended at step 19" in words(app, "state"))

    drive(run, scene)


@pytest.mark.parametrize("size", [(40, 12), (80, 24), (250, 70)])
def test_the_view_fits_small_and_large_terminals(long_run: Path, size: tuple[int, int]) -> None:
    async def scene(app: WatchApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: app.query_one(OptionList).option_count == 4)
        for widget in app.query("#state, #loss, #incidents"):
            assert widget.region.width > 0
            assert widget.region.right <= size[0]
        assert app.query_one("#incidents").region.bottom <= size[1]
        if size == (80, 24):
            assert app.query_one("#detail").region.height >= 10

    drive(long_run, scene, size=size)


def test_what_arrives_when_the_view_is_closed_finds_nothing_to_draw_on_and_does_not_fall_over(long_run: Path) -> None:
    seen: list[WatchApp] = []

    async def scene(app: WatchApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: app.query_one(OptionList).option_count == 4)
        seen.append(app)
        chosen = app.query_one(OptionList)
        event = OptionList.OptionHighlighted(chosen, chosen.get_option_at_index(0), 0)
        await app.query_one("#detail").remove()  # the widgets go one by one while messages are still under way
        app.on_option_list_option_highlighted(event)
        assert app.story is not None
        app.draw(app.story)

    drive(long_run, scene)
    (app,) = seen
    assert app.story is not None
    app.draw(app.story)
    app.complain("the run was moved")
    app._hand_back(app.draw, app.story)

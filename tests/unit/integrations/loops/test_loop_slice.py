"""Cutting the lines between a model's call and backward out of a loop, and running them again."""

from __future__ import annotations

import linecache
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

from steadygrad.integrations.loops.batch_names import bind_batch
from steadygrad.integrations.loops.loop_slice import LoopSlice, cut


class Watcher:
    """Stands in for the hooks: a model that notes who called it, and a backward that does the same."""

    def __init__(self) -> None:
        self.lines: list[tuple[FrameType, int]] = []
        self.found: LoopSlice | str = "backward was not called"
        self.taken: dict[str, Any] = {}
        self.early: dict[str, Any] = {}
        self.loss: torch.Tensor | None = None
        self.frame: FrameType | None = None
        self.globals: dict[str, Any] = {}
        self.weight = torch.nn.Parameter(torch.tensor([1.0, -2.0, 3.0]))

    def model(self, x: torch.Tensor) -> torch.Tensor:
        self._note()
        return x * self.weight

    def _note(self) -> None:
        frame: FrameType | None = sys._getframe(2)
        first = not self.lines
        while frame is not None:
            self.lines.append((frame, frame.f_lineno))
            if first and isinstance(self.found, LoopSlice) and frame.f_code is self.found.owner:
                self.early = self.found.take(frame)
            frame = frame.f_back

    def backward(self, loss: torch.Tensor) -> None:
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            called = next((line for noted, line in self.lines if noted is frame), None)
            if called is not None:
                self.found = cut(frame, called, frame.f_lineno)
                self.loss, self.globals, self.frame = loss.detach().clone(), frame.f_globals, frame
                if isinstance(self.found, LoopSlice):
                    self.taken = self.early or self.found.take(frame)
                self.lines, self.early = [], {}
                return
            frame = frame.f_back


@pytest.fixture
def run_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Watcher]:
    def run(source: str) -> Watcher:
        watcher = Watcher()
        monkeypatch.setattr(torch.Tensor, "backward", lambda loss, *_, **__: watcher.backward(loss))
        path = tmp_path / "loop.py"
        text = textwrap.dedent(source)
        path.write_text(text)
        linecache.checkcache(str(path))
        names: dict[str, Any] = {"torch": torch, "model": watcher.model, "said": [], "__name__": "loop"}
        exec(compile(text, str(path), "exec"), names)
        watcher.globals.setdefault("said", names["said"])
        return watcher

    return run


def again(watcher: Watcher) -> torch.Tensor:
    assert isinstance(watcher.found, LoopSlice), watcher.found
    return watcher.found.run(watcher.taken, watcher.globals).detach()


LOOPS = {
    "a script": """
        for x, y in [(torch.ones(3), torch.zeros(3))]:
            out = model(x)
            loss = (out - y).pow(2).mean()
            said.append(loss.item())
            loss.backward()
        """,
    "a function with a criterion, a context and a division": """
        def criterion(out, y):
            return (out - y).abs().sum()
        def train(data):
            total = 0.0
            for step, (x, y) in enumerate(data):
                with torch.autocast("cpu", enabled=False):
                    out = model(x)
                    loss = criterion(out, y)
                    print("side effect")
                total += loss.item()
                (loss / 4).backward()
        train([(torch.ones(3), torch.zeros(3))])
        """,
    "the model called inside a helper": """
        def loss_of(batch):
            said.append("called")
            return model(batch["x"]).square().sum()
        class Trainer:
            def fit(self, data):
                for batch in data:
                    loss = loss_of(batch)
                    self.last = loss
                    loss.backward()
        Trainer().fit([{"x": torch.ones(3)}])
        """,
    "several calls, a branch, an inner loop and writing in place": """
        x = torch.ones(3)
        for step in range(2):  # at the first one it is not yet known what to take
            loss = 0.0
            for scale in (1.0, 2.0):
                scores = model(x * scale)
                scores.clamp_(max=2.0)
                masked = scores.clone()
                masked[0] = -5.0
                if scale > 1:
                    loss = loss + masked.exp().sum()
                else:
                    loss = loss + masked.sum()
            loss.backward()
        """,
    "a check of the user's own before backward": """
        for x in [torch.ones(3)]:
            loss = model(x).sum()
            if not torch.isfinite(loss):
                said.append("bad")
                continue
            loss.backward()
        """,
    "the loss in an attribute, next to something else": """
        class Trainer:
            def fit(self, data):
                for x in data:
                    out, self.loss = model(x), model(x).square().sum()
                    self.loss.backward()
        Trainer().fit([torch.ones(3)])
        """,
    "the loss in an entry of a dictionary that was there before": """
        terms = {}
        for x in [torch.ones(3)]:
            terms["mean"] = model(x).mean()
            terms["all"] = terms["mean"] * 2
            terms["all"].backward()
        """,
    "terms gathered in a list": """
        for x in [torch.ones(3)]:
            terms = []
            for scale in (1.0, 2.0):
                terms.append(model(x * scale).sum())
            sum(terms).backward()
        """,
    "several statements on one line": """
        for x in [torch.ones(3)]:
            said.append(1); loss = model(x).sum(); said.append(2); loss.backward()
        """,
    "backward called by another function, on a divided loss": """
        class Accelerator:
            def backward(self, loss):
                (loss / 4).backward()
        accelerator = Accelerator()
        for x in [torch.ones(3)]:
            loss = model(x).sum()
            accelerator.backward(loss)
        """,
    "a handler around the forward": """
        for x in [torch.ones(3)]:
            try:
                out = model(x)
            except RuntimeError:
                continue
            loss = out.sum()
            loss.backward()
        """,
    "a running total that is written to in place": """
        total = torch.zeros(())
        for x in [torch.ones(3)]:
            loss = model(x).sum()
            total += loss.detach()
            loss.backward()
        """,
    "a carried value that the slice updates": """
        state = torch.zeros(3)
        for x in [torch.ones(3)] * 2:
            state = model(x) + state.detach()
            loss = state.sum()
            loss.backward()
        """,
}


@pytest.mark.parametrize("name", LOOPS)
def test_the_lines_give_the_same_loss_again_and_leave_no_effect(
    name: str, run_loop: Callable[[str], Watcher], capsys: pytest.CaptureFixture[str]
) -> None:
    watcher = run_loop(LOOPS[name])
    effects = len(watcher.globals.get("said", []))
    capsys.readouterr()
    before = {key: value for key, value in watcher.globals.items() if key != "__builtins__"}
    assert watcher.loss is not None
    # A helper that appends is code of the loop's own that the slice calls; only the loop's own lines are left out.
    calls = 1 if name == "the model called inside a helper" else 0
    assert torch.equal(again(watcher), watcher.loss)
    assert len(watcher.globals.get("said", [])) == effects + calls
    assert capsys.readouterr().out == ""
    after = {key: value for key, value in watcher.globals.items() if key != "__builtins__"}
    assert after.keys() == before.keys()
    assert all(after[key] is before[key] for key in before)


def test_the_lines_keep_their_numbers_and_their_file(run_loop: Callable[[str], Watcher], tmp_path: Path) -> None:
    watcher = run_loop(
        """
        for x in [torch.ones(3)]:
            out = model(x)
            loss = out.sum() / len(x)
            loss.backward()
        """
    )
    assert isinstance(watcher.found, LoopSlice)
    watcher.taken["x"] = []
    with pytest.raises(TypeError) as caught:
        again(watcher)
    frames = [(frame.path, frame.lineno + 1) for frame in caught.traceback]
    assert (tmp_path / "loop.py", 3) in [(Path(str(path)), line) for path, line in frames]


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (
            """
            stream = iter([torch.ones(3)] * 4)
            for x in stream:
                out = model(x)
                y = next(stream)
                loss = (out - y).sum()
                loss.backward()
            """,
            "takes the next item of an iterator",
        ),
        (
            """
            for out in [model(torch.ones(3))]:
                out.sum().backward()
            """,
            "not in one block",
        ),
    ],
    ids=["takes from an iterator", "called in the head of the loop"],
)
def test_what_cannot_be_cut_is_not_cut_and_says_why(source: str, why: str, run_loop: Callable[[str], Watcher]) -> None:
    watcher = run_loop(source)
    assert isinstance(watcher.found, str)
    assert why in watcher.found


def test_a_slice_of_the_whole_body_begins_with_the_loaders_batch(run_loop: Callable[[str], Watcher]) -> None:
    watcher = run_loop(
        """
        for step, (x, y) in enumerate([(torch.ones(3), torch.zeros(3))]):
            x = x * 2
            loss = (model(x) - y).sum()
            loss.backward()
        """
    )
    frame = watcher.frame
    assert frame is not None
    whole = cut(frame, None, 5)
    assert isinstance(whole, LoopSlice)
    assert whole.first_line == 3
    given = bind_batch(whole.batch_names, [torch.full((3,), 3.0), torch.zeros(3)])
    assert given is not None
    doubled = whole.run({**whole.take(frame), **given}, watcher.globals)
    assert doubled.item() == pytest.approx(6.0 * watcher.weight.sum().item())


def test_a_script_without_a_loop_is_never_run_from_its_beginning(run_loop: Callable[[str], Watcher]) -> None:
    watcher = run_loop(
        """
        x = torch.ones(3)
        loss = model(x).sum()
        loss.backward()
        """
    )
    assert watcher.frame is not None
    assert cut(watcher.frame, None, 4) == "backward is not called in a loop here"

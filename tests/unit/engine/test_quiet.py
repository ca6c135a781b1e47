"""What code that is run again prints, logs and warns of."""

from __future__ import annotations

import logging
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from steadygrad import Guard
from steadygrad.engine.recovery.reruns.quiet import no_warnings, quiet


def test_what_the_program_has_been_warned_of_once_is_not_shown_again(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    registry: dict[Any, Any] = {}

    def warn(message: str) -> None:
        warnings.warn_explicit(message, UserWarning, "train.py", 3, registry=registry)

    monkeypatch.setattr(warnings, "showwarning", lambda message, *_: seen.append(str(message)))
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        warn("a")
        with no_warnings():
            warn("b")
        warn("a")
        warn("b")
    assert seen == ["a", "b"]


def test_filters_that_are_set_inside_are_undone() -> None:
    before, show = list(warnings.filters), warnings.showwarning
    with no_warnings():
        warnings.simplefilter("error")
        warnings.showwarning = print  # type: ignore[assignment]
    assert list(warnings.filters) == before
    assert warnings.showwarning is show


def test_prints_logs_and_warnings_of_this_thread_go_nowhere_and_those_of_others_do_not(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with quiet():
        print("mine")
        logging.getLogger("program").error("mine")
        other = threading.Thread(target=lambda: (print("theirs"), logging.getLogger("program").error("theirs")))
        other.start()
        other.join()
    print("after")
    assert capsys.readouterr().out == "theirs\nafter\n"
    assert [record.getMessage() for record in caplog.records] == ["theirs"]


class Talking(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        print("printed")
        logging.getLogger("program").warning("logged")
        warnings.warn(f"warned of {len(x)}", stacklevel=2)
        return self.layer(x)


def test_a_diagnosis_repeats_nothing_that_the_program_prints_logs_or_warns_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    torch.manual_seed(0)
    model = Talking()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with (
        warnings.catch_warnings(record=True) as warned,
        Guard(model, optimizer, lambda m, x: m(x).square().mean() / x.std(), run_dir=tmp_path) as guard,
    ):
        warnings.simplefilter("always")
        for batch in (*torch.randn(3, 4, 3), torch.ones(4, 3)):
            guard.step(batch)
    assert guard.incidents[0].diagnosis.cause.slug == "zero_division"
    assert capsys.readouterr().out == "printed\n" * 4
    assert [each.name for each in caplog.records].count("program") == 4
    assert [str(each.message) for each in warned] == ["warned of 4"] * 4

"""What the demo shows while it runs, and what it tells at the end. Works on a terminal and in a log file."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from ...reporters.terminal.console import labelled, number, shown
from ...reporters.terminal.print_diagnosis import print_findings
from .two_loops import LoopState, Result, TwoLoops

BARS = "▁▂▃▄▅▆▇█"
PLAIN_BARS = "_.-=+*#@"
ROWS_IN_A_LOG = 12
REFUSED = "refused"


class DemoView:
    """Draws the race. On a terminal it redraws in place; elsewhere it prints a line now and then."""

    def __init__(self, console: Console, steps: int) -> None:
        self._console = console
        self._steps = steps
        self._laps: list[LoopState] = []
        self._progress = Progress(
            TextColumn("  training both"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
            TextColumn("left"), TimeRemainingColumn(), console=console,
        )  # fmt: skip
        self._task = self._progress.add_task("", total=steps)
        self._live = Live(console=console, refresh_per_second=8) if console.is_terminal else None
        self._bars = BARS if (console.encoding or "").lower().startswith("utf") else PLAIN_BARS

    @contextmanager
    def running(self) -> Iterator[None]:
        """Show the race within the block, with the guard's own words above it instead of in between."""
        logger = logging.getLogger("steadygrad")
        handler, propagate = _Above(self._console), logger.propagate
        logger.addHandler(handler)
        logger.propagate = False
        try:
            if self._live is None:
                self._console.print(Text("    step   plain loop      guarded", style="dim"))
                yield
                self._console.print()
                self._console.print(*self._two_lines(), sep="\n")
            else:
                with self._live:
                    yield
        finally:
            logger.removeHandler(handler)
            logger.propagate = propagate

    def show(self, lap: LoopState) -> None:
        """One step of both loops is done."""
        self._laps.append(lap)
        self._progress.advance(self._task)
        if self._live is not None:
            self._live.update(Group(*self._two_lines(), self._progress))
        elif lap.step % max(1, self._steps // ROWS_IN_A_LOG) == 0 or lap.step == self._steps - 1:
            guarded = REFUSED if lap.refused else number(lap.guarded_loss)
            self._console.print(Text(f"    {lap.step:>4}   {number(lap.plain_loss):>10}   {guarded:>10}"))

    def _two_lines(self) -> list[Text]:
        width = max(20, min(60, self._console.width - 44))
        lap = self._laps[-1]
        plain = [lap.plain_loss for lap in self._laps]
        guarded = [math.nan if lap.refused else lap.guarded_loss for lap in self._laps]
        told = REFUSED if lap.refused else f"loss {number(lap.guarded_loss)}"
        both = plain + guarded

        def line(name: str, losses: list[float], told: str, *, gap: str, style: str) -> Text:
            bars = sparkline(losses, width=width, of=self._steps, bars=self._bars, gap=gap, scale=both)
            return labelled(name, Text(f"{told:<12}  "), width=12).append(bars, style=style)

        return [
            line("plain loop", plain, f"loss {number(lap.plain_loss)}", gap="x", style="red"),
            line("guarded", guarded, told, gap=" ", style="green"),
        ]


def sparkline(
    losses: Sequence[float],
    *,
    width: int,
    of: int,
    bars: str = BARS,
    gap: str = "x",
    scale: Sequence[float] | None = None,
) -> str:
    """Losses of the first steps of `of` as a row of bars; `gap` where no loss of a stretch is finite.

    The lowest and the highest bar stand for the extremes of `scale`, or of the losses themselves.
    """
    finite = [loss for loss in (losses if scale is None else scale) if math.isfinite(loss)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
    span = (high - low) or 1.0
    line = ""
    for place in range(width):
        start, end = place * of // width, max((place + 1) * of // width, place * of // width + 1)
        stretch = losses[start:end]
        if not stretch:
            break
        numbers = [loss for loss in stretch if math.isfinite(loss)]
        mean = sum(numbers) / len(numbers) if numbers else math.nan
        line += bars[round((mean - low) / span * (len(bars) - 1))] if numbers else gap
    return line


def print_opening(console: Console, race: TwoLoops) -> None:
    """What is about to be trained."""
    console.print(Text("steadygrad demo", style="bold"))
    told = (
        f"A small GPT ({race.num_parameters:,} weights) reads a cue from Romeo and Juliet or Measure for Measure and "
        f"learns to speak the reply: {len(race.dialogue.pairs):,} pairs, {race.steps} steps. Two loops start from the "
        "same weights and get the same batches. One is a plain loop; the other is sg.Guard."
    )
    console.print(Padding(Text(told), (0, 0, 1, 2)))


def print_ending(console: Console, result: Result, run_dir: Path, *, report: Path) -> None:
    """What happened, in a few lines, and what to do next."""
    console.print()
    console.print(Text("What happened", style="bold"))
    console.print(_told("plain loop", _plain(result)))
    console.print(_told("guarded", _guarded(result)))
    if result.incidents:
        first = result.incidents[0]
        console.print(_told(f"incident {first.number}", f"step {first.first_step}: {shown(first.headline)}"))
        if result.culprits:
            console.print(_told("the sample", _culprit(result)))
    diagnosed = next((incident for incident in result.incidents if incident.diagnosis is not None), None)
    if diagnosed is not None and diagnosed.diagnosis is not None:
        console.print()
        console.print(Text(f"Why: step {diagnosed.first_step} was replayed", style="bold"))
        print_findings(console, diagnosed.diagnosis)
    console.print()
    console.print(_told("journal", shown(run_dir)))
    console.print(_told("next", f"steady incidents {shown(run_dir)}"))
    console.print(_told("report", f"{shown(report)} (one file: open it in a browser)"))


def _told(label: str, text: str | Text) -> Table:
    """A label and its text, which wraps in its own column."""
    line = Table.grid(padding=(0, 1, 0, 0))
    line.add_column(style="dim", min_width=15)
    line.add_column()
    line.add_row(f"  {label}", text)
    return line


def _plain(result: Result) -> Text:
    first = result.plain_first_bad_step
    if first is None:
        return Text(f"{result.steps} steps and no bad batch among them; try more --steps or another --seed")
    dead = result.steps - first
    told = f"its loss became nan at step {first} and stayed nan for the {dead} steps that were left; "
    return Text(told + f"{result.plain_bad_weights} of {result.num_weights} weight tensors hold NaN", style="red")


def _guarded(result: Result) -> Text:
    summary = result.summary
    first = next((loss for loss in result.guarded_losses if math.isfinite(loss)), math.nan)
    told = f"{summary['steps']} steps, {summary['skipped']} refused, loss {number(first, digits=3)} -> "
    told += f"{number(result.guarded_loss, digits=3)}; {result.guarded_bad_weights} of {result.num_weights} weight "
    return Text(told + "tensors hold NaN", style="green")


def _culprit(result: Result) -> str:
    cue = result.culprits[0]
    more = f", and {len(result.culprits) - 1} more like it" if len(result.culprits) > 1 else ""
    speaker, _, spoken = cue.partition("\n")
    words = shown(" / ".join(spoken.splitlines()), limit=50)
    return f'{speaker} "{words}" fills the whole context, so no reply is left to score and its mean is 0 / 0{more}'


class _Above(logging.Handler):
    """Prints log lines through the console, so that they scroll above what is redrawn."""

    def __init__(self, console: Console) -> None:
        super().__init__(logging.WARNING)
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        first_line = record.getMessage().splitlines()[0].replace(os.getcwd() + os.sep, "")
        self._console.print(Text(f"  {shown(first_line, limit=self._console.width - 4)}", style="yellow"))

"""A probe on a terminal: the table of ranges, a picture of them, and what each dtype came to."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...records.checks.probe import ModuleRange, PrecisionTrial, Probe, ScaleTrial
from ..run_data.counted import are, counted
from .console import number, shown

SPANS = {"fp16": (-24, 16), "bf16": (-133, 128), "fp8_e4m3": (-9, 9), "fp8_e5m2": (-16, 16)}
"""The powers of two between which a dtype has numbers."""
TITLES = {"fp16": "fp16", "bf16": "bf16", "fp8_e4m3": "e4m3", "fp8_e5m2": "e5m2"}


def print_probe(console: Console, found: Probe, *, most: int | None = 20) -> None:
    """The modules with the least headroom first to be left in; then the picture; then the verdicts."""
    modules = tightest(found.modules, most)
    left_out = len(found.modules) - len(modules)
    console.print(
        Text("one step: largest magnitudes; powers of two left before overflow and share lost, outputs / gradients")
    )
    console.print(_table(modules))
    if left_out:
        console.print(Text(f"{counted(left_out, 'module')} with more headroom {are(left_out)} left out", style="dim"))
    console.print()
    for line in picture(modules, width=max(24, min(64, console.width - 42))):
        console.print(line, soft_wrap=True)
    console.print()
    for trial in found.trials:
        console.print(verdict(trial), soft_wrap=True)
        for scaled in trial.scales:
            console.print(scale_verdict(scaled), soft_wrap=True)
    for note in found.notes:
        console.print(Text(f"note: {shown(note)}", style="dim"), soft_wrap=True)


def tightest(modules: Sequence[ModuleRange], most: int | None) -> list[ModuleRange]:
    """So many modules with the least headroom in fp16, in the order in which they ran."""
    if most is None or len(modules) <= most:
        return list(modules)
    kept = sorted(range(len(modules)), key=lambda place: room(modules[place]))[:most]
    return [modules[place] for place in sorted(kept)]


def room(module: ModuleRange) -> float:
    """Bits of headroom in the narrowest dtype that was asked for, outputs or gradients."""
    bits = [
        value
        for fit in module.fits.values()
        for value in (fit.headroom, fit.grad_headroom)
        if value is not None
    ]  # fmt: skip
    return min(bits, default=math.inf)


def _table(modules: Sequence[ModuleRange]) -> Table:
    names = list(modules[0].fits) if modules else []
    table = Table(box=None, header_style="dim", pad_edge=False)
    table.add_column("module", overflow="fold")
    table.add_column("outputs", justify="right")
    table.add_column("gradients", justify="right")
    for name in names:
        table.add_column(f"{TITLES[name]} bits", justify="right")
        table.add_column("lost", justify="right")
    for module in modules:
        cells: list[str | Text] = [
            shown(module.name, limit=60), number(module.largest, digits=3), number(module.grad_largest, digits=3)
        ]  # fmt: skip
        for name in names:
            fit = module.fits[name]
            bits = f"{_bits(fit.headroom)} / {_bits(fit.grad_headroom)}"
            lost = f"{_share(fit.underflow)} / {_share(fit.grad_underflow)}"
            tight = (fit.headroom is not None and fit.headroom < 1.0) and not name.startswith("fp8")
            cells.append(Text(bits, style="bold red" if tight else ""))
            cells.append(Text(lost, style="yellow" if max(fit.underflow, fit.grad_underflow) > 0.05 else ""))
        table.add_row(*cells)
    return table


def _bits(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}" if math.isfinite(value) else "over"


def _share(value: float) -> str:
    return "0" if value == 0 else "<1%" if value < 0.01 else f"{value:.0%}"


def picture(modules: Sequence[ModuleRange], *, width: int = 56) -> list[Text]:
    """Ranges on an axis of powers of two: `=` outputs, `-` gradients, `|` the ends of fp16."""
    low, high = axis(modules)

    def place(power: float) -> int:
        return round((power - low) / (high - low) * (width - 1))

    ends = [place(power) for power in SPANS["fp16"] if low <= power <= high]
    lines = [Text(f"{'':32}2^{low}{'':{max(1, width - len(str(low)) - len(str(high)) - 4)}}2^{high}", style="dim")]
    for module in modules:
        pairs = (
            (module.smallest, module.largest, "="),
            (module.grad_smallest, module.grad_largest, "-"),
        )
        for row, (smallest, largest, mark) in enumerate(pairs):
            if smallest is None or largest is None:
                continue
            cells = [" "] * width
            for end in ends:
                cells[end] = "|"
            start, stop = place(max(low, math.log2(smallest))), place(min(high, math.log2(largest)))
            cells[start : stop + 1] = mark * (stop + 1 - start)
            name = shown(module.name, limit=30) if row == 0 else ""
            over = math.log2(largest) > SPANS["fp16"][1]
            lines.append(
                Text.assemble(f"{name:<30}  ", ("".join(cells), "red" if over else "cyan" if row else "green"))
            )
    lines.append(Text(f"{'':32}= outputs   - gradients   | the ends of fp16", style="dim"))
    return lines


def axis(modules: Sequence[ModuleRange]) -> tuple[int, int]:
    """The powers of two that the picture spans: all that was seen, and fp16, but not below 2^-60."""
    small = [v for m in modules for v in (m.smallest, m.grad_smallest) if v]
    large = [v for m in modules for v in (m.largest, m.grad_largest) if v]
    low = min([math.floor(math.log2(v)) for v in small], default=-26)
    high = max([math.ceil(math.log2(v)) for v in large], default=17)
    return max(-60, min(-26, low)), min(128, max(18, high))


def verdict(trial: PrecisionTrial) -> Text:
    """`fp16   does not fit: the loss is nan; with l1, l2 in float32 it fits (run; loss scale 65536)`."""
    words = "fits" if trial.fits else "does not fit"
    how = "emulated" if trial.emulated else "run under autocast"
    scale = f", loss scale {number(trial.loss_scale, digits=6)}" if trial.loss_scale is not None else ""
    lost = f", {trial.vanished:.0%} of weight gradients vanish" if trial.vanished and trial.vanished >= 0.01 else ""
    return Text.assemble(
        (f"{trial.dtype:<9}", "bold"),
        (words, "bold green" if trial.fits else "bold red"),
        f": {shown(trial.because, limit=400)} ({how}{scale}{lost})",
    )


def scale_verdict(trial: ScaleTrial) -> Text:
    """`  blocks of 32  fits: finite; loss within 1.2e-03, gradient cosine 0.9991`"""
    words, style = ("fits", "green") if trial.fits else ("does not fit", "red")
    lost = f", {trial.vanished:.0%} of weight gradients vanish" if trial.vanished and trial.vanished >= 0.01 else ""
    return Text.assemble(f"  {trial.scale:<14}", (words, style), f": {shown(trial.because, limit=400)}{lost}")

"""The results as Markdown: a row per regime, a column per entry point, and what was wrong below."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from .entry_points import PLAIN
from .results import ACTED, LEFT_ALONE, NOT_APPLICABLE, Result, code_digest, total_guarded


def markdown(results: Sequence[Result], command: str) -> str:
    """The whole page."""
    healthy = [result for result in results if result.kind == "healthy"]
    sick = [result for result in results if result.kind != "healthy"]
    parts = [
        "# Rough but healthy runs\n",
        f"Made by `{command}`; digest of the code {code_digest()}.\n",
        headline(results),
        "",
    ]
    if healthy:
        parts += ["## Healthy: the guard must leave them alone\n", *_table(healthy), ""]
    if sick:
        parts += ["## Sick: the guard must act or report\n", *_table(sick), ""]
    parts += [*_wrong(results), *_warnings(healthy), *_cost(healthy)]
    return "\n".join(parts).rstrip("\n") + "\n"


def headline(results: Sequence[Result]) -> str:
    """The counts in one paragraph."""
    guarded = [r for r in results if r.status != NOT_APPLICABLE and r.entry_point != PLAIN]
    healthy = [r for r in guarded if r.kind == "healthy"]
    alone = [r for r in healthy if r.status == LEFT_ALONE]
    sick = [r for r in guarded if r.kind != "healthy"]
    unhealthy = sorted({r.regime for r in results if r.kind == "healthy" and not r.plain_healthy})
    regimes = {r.regime for r in healthy}
    disturbed = {r.regime for r in healthy if r.status != LEFT_ALONE}
    lines = [
        f"{len(regimes)} regimes, {len({r.seed for r in results})} seeds, {total_guarded(results):,} guarded updates; "
        f"{len(alone)} of {len(healthy)} runs left alone; regimes with no disturbed run: "
        f"{len(regimes) - len(disturbed)} of {len(regimes)}.",
    ]
    if sick:
        acted = sum(r.status == ACTED for r in sick)
        lines.append(f"Sick twins that were acted on or reported: {acted} of {len(sick)}.")
    if unhealthy:
        lines.append(f"Not healthy when plain: {', '.join(unhealthy)}.")
    return " ".join(lines)


def _table(results: Sequence[Result]) -> list[str]:
    entry_points = list(dict.fromkeys(result.entry_point for result in results))
    lines = [_row(["regime", "plain loss", *entry_points]), _row(["---"] * (2 + len(entry_points)))]
    for regime in dict.fromkeys(result.regime for result in results):
        mine = [result for result in results if result.regime == regime]
        loss = " to ".join("not finite" if each is None else f"{each:.3g}" for each in mine[0].loss)
        cells = [_cell([r for r in mine if r.entry_point == name]) for name in entry_points]
        lines.append(_row([regime, loss, *cells]))
    return lines


def _cell(results: Sequence[Result]) -> str:
    if not results:
        return "not run"
    worst = next((result for result in results if not result.good), results[0])
    if worst.good:
        return f"n/a: {worst.why}" if worst.status == NOT_APPLICABLE else worst.status
    bad = sum(not result.good for result in results)
    return f"**{worst.status}**" + (f" ({bad} of {len(results)} seeds)" if len(results) > 1 else "")


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def _wrong(results: Sequence[Result]) -> list[str]:
    wrong = [result for result in results if not result.good]
    if not wrong:
        return ["## What was wrong\n", "Nothing.", ""]
    lines = ["## What was wrong\n", _row(["regime", "seed", "entry point", "what"]), _row(["---"] * 4)]
    lines += [_row([r.regime, str(r.seed), r.entry_point, f"{r.status}: {r.why}"]) for r in wrong]
    return [*lines, ""]


def _warnings(results: Sequence[Result]) -> list[str]:
    counted: dict[str, Counter[str]] = {}
    for result in results:
        counted.setdefault(result.regime, Counter()).update(result.warnings)
    lines = [
        _row([regime, "; ".join(f"{name} ({count})" for name, count in counter.most_common(6))])
        for regime, counter in counted.items()
        if counter
    ]
    if not lines:
        return ["## Warnings\n", "None.", ""]
    return ["## Warnings (allowed, and listed)\n", _row(["regime", "what, how often"]), _row(["---"] * 2), *lines, ""]


def _cost(results: Sequence[Result]) -> list[str]:
    lines = [
        "## Time\n",
        _row(["entry point", "guarded updates", "ms per guarded update", "ms plain"]),
        _row(["---"] * 4),
    ]
    for name in dict.fromkeys(result.entry_point for result in results):
        mine = [r for r in results if r.entry_point == name and r.guarded]
        steps = sum(r.steps for r in mine) or 1
        guarded, plain = (1e3 * sum(getattr(r, key) for r in mine) / steps for key in ("guarded_s", "plain_s"))
        lines.append(_row([name, f"{sum(r.guarded for r in mine):,}", f"{guarded:.2f}", f"{plain:.2f}"]))
    return lines

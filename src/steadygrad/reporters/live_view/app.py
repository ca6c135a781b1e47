"""The live view of a run: plots, layers, numbers and incidents, redrawn when the run has moved on.

Files are read in a thread, so that keys answer at once however large the run is. Nothing is drawn while nothing is
new, and nothing is animated: a slow line carries only what changed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.timer import Timer
from textual.widgets import Footer, OptionList, Static
from textual.widgets.option_list import Option

from ...records import Incident, Kind, kinds_of
from ...records.errors import SteadyError
from ..run_data.current_numbers import glance
from ..run_data.follow_run import RunFollower
from ..run_data.run_summary import RunSummary, cause_in_words, kind_of, summarise
from ..terminal.console import number, shown
from .curves import Curve
from .incident_detail import detail_of
from .print_once import STYLES, memory_line, numbers_line
from .text_strips import heat_lines

MAX_LISTED = 500


class WatchApp(App[None]):
    """`steady watch`: follows one run until the person leaves."""

    TITLE = "steady watch"
    CSS = """
    Screen { layout: vertical; }
    #state { height: 1; padding: 0 1; }
    #numbers { height: auto; max-height: 2; padding: 0 1; color: $text-muted; }
    #plots { height: 2fr; min-height: 8; }
    Curve, #incidents, #detail { border: round $panel; border-title-color: $text; padding: 0; }
    Curve { width: 1fr; height: 1fr; }
    Curve > .plot--axis { color: $panel-lighten-2; }
    Curve > .plot--tick { color: $text-muted; text-style: none; }
    #layers { height: auto; max-height: 10; padding: 0 1; }
    #below { height: 1fr; min-height: 5; }
    #incidents { width: 2fr; height: 100%; text-wrap: nowrap; text-overflow: ellipsis; }
    #incidents:focus { border: round $accent; }
    #detail { width: 3fr; height: 100%; padding: 0 1; overflow-y: auto; }
    .narrow #plots { layout: vertical; }
    .narrow #detail, .low #layers, .narrow.low #grad_norm { display: none; }
    .short #layers { display: none; }
    .short #plots { height: 1fr; min-height: 4; }
    .short #below { height: 12; }
    .short #numbers { max-height: 1; }
    .low #plots { height: 1fr; min-height: 4; }
    .low #below { height: 4; min-height: 4; }
    .low #numbers { max-height: 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "quit"),
        Binding("n", "move(1)", "next"),
        Binding("p", "move(-1)", "previous"),
        Binding("r", "rank", "rank"),
        Binding("z", "window", "last steps"),
        Binding("space", "pause", "pause"),
    ]
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, run: Path, *, every: float = 1.0) -> None:
        super().__init__()
        self.animation_level = "none"
        self.story: RunSummary | None = None
        self.looks = 0
        self._path, self._every = run, every
        self._follower = RunFollower(run)
        self._reading = threading.Lock()
        self._rank: int | None = None
        self._recent_only = False
        self._drawn: object = None
        self._paused = False
        self._timer: Timer | None = None
        self._suggested: int | None = None

    def compose(self) -> ComposeResult:
        yield Static(id="state")
        with Horizontal(id="plots"):
            yield Curve("loss", id="loss")
            yield Curve("gradient norm", id="grad_norm")
        yield Static(id="layers")
        yield Static(id="numbers")
        with Horizontal(id="below"):
            yield OptionList(id="incidents")
            yield Static(id="detail")
        yield Footer()

    def on_mount(self) -> None:
        self.query_one("#incidents").border_title = "incidents"
        self.query_one("#detail").border_title = "diagnosis"
        self.query_one("#incidents").focus()
        self._fit()
        self.look()
        self._timer = self.set_interval(self._every, self.look)

    def on_resize(self) -> None:
        self._fit()
        self._drawn = None
        if self.story is not None:
            self.draw(self.story)

    @work(thread=True, group="look")
    def look(self) -> None:
        """Reads what is new, in its own thread. While one look is still reading, the next ones are left out."""
        if self._paused or not self._reading.acquire(blocking=False):
            return
        try:
            self._follower.poll()
            story = summarise(self._path, self._follower)
        except (SteadyError, OSError) as error:  # a run may be moved or removed at any moment
            self._hand_back(self.complain, str(error))
        else:
            self._hand_back(self.draw, story)
        finally:
            self._reading.release()

    def _hand_back(self, show: Callable[[Any], None], what: Any) -> None:
        """From the reading thread to the view's own, unless the view has been closed meanwhile."""
        if not self.is_running:
            return
        try:
            self.call_from_thread(show, what)
        except RuntimeError:
            if self.is_running:  # else it was closed between the question and the call
                raise

    def draw(self, story: RunSummary) -> None:
        """Shows the story, if anything in it changed since it was last shown."""
        if self._undrawable():
            return
        self.story = story
        self.looks += 1
        now = glance(story, rank=self._rank)
        changed = (now["steps"], now["num_incidents"], now["sentence"], now["rank"], self._recent_only, self._newest())
        if changed == self._drawn:
            return
        self._drawn = changed
        self.query_one("#state", Static).update(self._state_line(story, now))
        memory = [memory_line(now["memory"])] if now["memory"] else []
        self.query_one("#numbers", Static).update(Text("   ".join([numbers_line(now), *memory])))
        rows = next((rows for rows in story.ranks if rows.rank == now["rank"]), None)
        marks = [incident.first_step for incident in story.incidents]
        last = 300 if self._recent_only else None
        for name in ("loss", "grad_norm"):
            clip = story.clip if name == "grad_norm" else None
            self.query_one(f"#{name}", Curve).show(rows, name, marks=marks, last=last, clip=clip)
        room = max(2, min(9, self.size.height // 5 - 1))
        lines = heat_lines(rows.heat, rows=room, width=self.size.width - 2) if rows is not None else []
        self.query_one("#layers", Static).update(Text("\n").join(lines))
        self._draw_incidents(story)

    def complain(self, sentence: str) -> None:
        """The run cannot be read at this moment; the view stays and tries again."""
        if self._undrawable():
            return
        self.query_one("#state", Static).update(Text(shown(sentence), style="red"))
        self._drawn = None

    def action_move(self, by: int) -> None:
        """To the next or the previous incident."""
        listed = self.query_one("#incidents", OptionList)
        if listed.option_count:
            at = listed.highlighted if listed.highlighted is not None else -1
            listed.highlighted = max(0, min(listed.option_count - 1, at + by))

    def action_rank(self) -> None:
        """To the next rank's curves."""
        ranks = [rows.rank for rows in self.story.ranks] if self.story is not None else []
        if self.story is None or len(ranks) < 2:
            self.notify("This run has one rank.", timeout=3)
            return
        current = self._rank if self._rank in ranks else ranks[0]
        self._rank = ranks[(ranks.index(current) + 1) % len(ranks)]
        self.draw(self.story)

    def action_window(self) -> None:
        """Between the whole run and its last steps."""
        self._recent_only = not self._recent_only
        if self.story is not None:
            self.draw(self.story)

    def action_pause(self) -> None:
        """Stop reading, or go on."""
        self._paused = not self._paused
        self._drawn = None
        if self.story is not None:
            self.draw(self.story)

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        if self._undrawable():
            return
        number_of = event.option.id
        incidents = self.story.incidents if self.story is not None else []
        chosen = next((incident for incident in incidents if str(incident.number) == number_of), None)
        if chosen is not None:
            self.query_one("#detail", Static).update(detail_of(chosen, kind_of(chosen, kinds_of(incidents))))

    def _undrawable(self) -> bool:
        """Whether the widgets are going or gone: a message that was on its way then finds nothing to draw on."""
        return not (self.is_running and self.query("#state") and self.query("#detail") and self.query("#layers"))

    def _draw_incidents(self, story: RunSummary) -> None:
        listed = self.query_one("#incidents", OptionList)
        listed.border_title = f"incidents ({len(story.incidents)})"
        shown_now = story.incidents[-MAX_LISTED:]
        kept = listed.highlighted
        kinds = {incident.number: kind for kind in story.kinds for incident in kind.incidents}
        listed.clear_options()
        listed.add_options(
            Option(_listed(incident, kinds[incident.number]), id=str(incident.number)) for incident in shown_now
        )
        if shown_now:
            # Until a person moves, the newest incident with a remedy, or at least a diagnosis, is the one to read.
            known = [place for place, each in enumerate(shown_now) if kinds[each.number].best is each]
            best = max(known, key=lambda place: (*_known(shown_now[place]), place), default=len(shown_now) - 1)
            if kept is None or kept == self._suggested:
                kept = self._suggested = best
            listed.highlighted = min(kept, len(shown_now) - 1)
        else:
            self.query_one("#detail", Static).update(Text("no incident: every update was applied", style="green"))

    def _state_line(self, story: RunSummary, now: dict[str, Any]) -> Text:
        line = Text(shown(story.name, limit=40), style="bold", no_wrap=True, overflow="ellipsis")
        line.append("  ").append(shown(story.state.sentence), style=STYLES[story.state.word])
        if len(story.ranks) > 1:
            line.append(f"  rank {now['rank']} of {len(story.ranks)}", style="cyan")
        if self._paused:
            line.append("  paused", style="yellow")
        line.append(f"  loss {number(now['loss'])}  norm {number(now['grad_norm'])}", style="not bold")
        for note in story.notes[:1]:
            line.append(f"  {shown(note, limit=200)}", style="yellow not bold")
        return line

    def _newest(self) -> object:
        """Changes when a diagnosis is added to an incident that was already there."""
        incidents = self.story.incidents if self.story is not None else []
        return sum(incident.diagnosis is not None for incident in incidents), self._paused

    def _fit(self) -> None:
        self.screen.set_class(self.size.width < 64, "narrow")
        self.screen.set_class(self.size.height < 22, "low")
        self.screen.set_class(self.size.height < 32, "short")


def _known(incident: Incident) -> tuple[bool, bool]:
    found = incident.diagnosis
    return found is not None and bool(found.remedies), found is not None


def _listed(incident: Incident, kind: Kind) -> Text:
    known = kind.best if incident.diagnosis is None else incident
    like = f"as {known.number}: " if known is not incident and known.diagnosis is not None else ""
    told = shown(like + (cause_in_words(known) or incident.headline or incident.symptom), limit=90)
    return Text(f"{incident.number:>3} {incident.first_step:>6,} {told}", no_wrap=True, overflow="ellipsis")

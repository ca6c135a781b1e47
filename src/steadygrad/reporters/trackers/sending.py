"""`steady watch --to`: feed trackers until the run is over, and say where everything went."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from ...journal import read_run
from ..run_data.counted import counted
from ..run_data.run_summary import name_of
from ..terminal.console import labelled, print_json, shown
from . import open_tracker
from .feed import Feed


def send(console: Console, run: Path, names: Sequence[str], *, once: bool, every: float, json: bool) -> None:
    """Sends all there is, and, unless `once`, what is still to come. Leaving with Ctrl-C closes the trackers too."""
    config = read_run(run).get("configuration")
    known = config if isinstance(config, dict) else {}
    trackers = {
        name: open_tracker(name, run_dir=run, title=name_of(run), config=known) for name in dict.fromkeys(names)
    }
    feed = Feed(run, list(trackers.values()))
    try:
        story = feed.poll()
        while not once and story.state.word == "running":
            time.sleep(every)
            story = feed.poll()
    except KeyboardInterrupt:
        pass
    finally:
        feed.close()
    if json:
        places = {name: tracker.place for name, tracker in trackers.items()}
        print_json({"run": str(run), "steps": feed.num_steps, "incidents": feed.num_incidents, "sent_to": places})
        return
    for name, tracker in trackers.items():
        sent = f"{counted(feed.num_steps, 'step')} and {counted(feed.num_incidents, 'incident')}"
        told = f"{sent}, in {shown(tracker.place)}"
        console.print(labelled(name, told, width=12), soft_wrap=True)

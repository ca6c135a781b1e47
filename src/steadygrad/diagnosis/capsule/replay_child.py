"""The child of `steady replay`: the user's program, taken over at its first guarded step.

    python -m steadygrad.diagnosis.capsule.replay_child JOB

The program runs as it always does until a guard is about to run its first batch. There the capsule's state and batch
are put in place of the program's own, the step is run again and diagnosed, the answer is written to a file, and the
process ends at once: nothing of the program runs past that point. Its guards open no run directory, resume nothing
and notify no one, so that looking at a failure never writes into its record.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from ...records import to_plain
from ...records.errors import SteadyError


def main() -> None:
    """Run the job in the file named on the command line."""
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    take_over(Path(job["capsule"]), Path(job["answer"]), depth=job["depth"], as_it_was=job["as_it_was"])
    sys.argv = [job["script"] or "", *job["arguments"]]
    if job["module"] is not None:
        sys.path[0] = os.getcwd()
        runpy.run_module(job["module"], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(job["script"]).parent)
        runpy.run_path(job["script"], run_name="__main__")


def take_over(capsule: Path, answer: Path, **options: Any) -> None:
    """Let the first batch of the first guard of this process be the capsule's."""
    from ...engine import validate
    from ...integrations import build

    make_loop = build.build_loop

    def start_loop(model: Any, optimizers: Any, loss_fn: Any, config: Any) -> Any:
        loop = make_loop(
            model, optimizers, loss_fn, config.but(run_dir=None, resume=False, notify=None, checkpoint_every=None)
        )

        def enter() -> NoReturn:
            validate.release(optimizers)  # from the guard that will not need them any more
            made = {"model": model, "optimizer": optimizers, "loss_fn": loss_fn}
            made["extra_state"] = config.extra_state
            _perform(capsule, answer, lambda: made, options)

        loop.enter = enter  # type: ignore[method-assign]
        return loop

    # Guards of every kind are made through this name, and none has been imported yet.
    build.build_loop = start_loop


def _perform(capsule: Path, answer: Path, entry: Callable[[], Any], options: dict[str, Any]) -> NoReturn:
    """Replay, write what came of it, and end the process before the program can go on."""
    from .replay_capsule import replay_capsule

    try:
        said: dict[str, Any] = {"replayed": to_plain(replay_capsule(capsule, entry, **options))}
    except SteadyError as error:
        said = {"error": str(error)}
    beside = answer.with_suffix(".part")
    beside.write_text(json.dumps(said, allow_nan=False), encoding="utf-8")
    beside.rename(answer)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()

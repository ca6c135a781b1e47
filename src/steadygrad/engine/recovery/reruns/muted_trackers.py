"""Experiment trackers hear nothing of a step that is run again: its numbers were logged the first time.

The methods of the trackers that are loaded are replaced while some thread runs a step again, and do nothing in that
thread; other threads log as ever.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

from ....detect.tensors.foreign_objects import getattr

_TRACKERS = (
    ("torch.utils.tensorboard.writer", "SummaryWriter", ("add_",)),
    ("tensorboardX.writer", "SummaryWriter", ("add_",)),
    ("wandb.sdk.wandb_run", "Run", ("log",)),
    ("mlflow.tracking.client", "MlflowClient", ("log_", "set_tag")),
    ("comet_ml", "CometExperiment", ("log_",)),
    ("aim.sdk.run", "Run", ("track",)),
    ("swanlab.data.run.main", "SwanLabRun", ("log",)),
)
"""By module and class, how the names of the methods begin that send something."""
_lock = threading.Lock()
_silent: Counter[int] = Counter()
_replaced: list[tuple[type, str, Any]] = []


@contextlib.contextmanager
def muted_trackers() -> Iterator[None]:
    """Inside, trackers do nothing in this thread. May be nested."""
    thread = threading.get_ident()
    with _lock:
        if not _silent:
            _replace()
        _silent[thread] += 1
    try:
        yield
    finally:
        with _lock:
            _silent[thread] -= 1
            if not _silent[thread]:
                del _silent[thread]
            if not _silent:
                _put_back()


def _replace() -> None:
    for module, name, beginnings in _TRACKERS:
        owner = getattr(sys.modules.get(module), name, None)
        if inspect.isclass(owner):
            for method in [each for each in vars(owner) if each.startswith(beginnings)]:
                original = vars(owner)[method]
                if inspect.isfunction(original):
                    _replaced.append((owner, method, original))
                    setattr(owner, method, _unless_silent(original))


def _put_back() -> None:
    for owner, method, original in reversed(_replaced):
        setattr(owner, method, original)
    _replaced.clear()


def _unless_silent(original: Any) -> Any:
    @functools.wraps(original)
    def method(*args: Any, **kwargs: Any) -> Any:
        return None if threading.get_ident() in _silent else original(*args, **kwargs)

    return method

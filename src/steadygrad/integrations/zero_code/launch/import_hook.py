"""Act when a module has been imported, whoever found and loaded it. Needs nothing but `sys`.

A finder of ours on `sys.meta_path` would be seen by the program and misses a module that another finder answers for.
So this stands one level higher, at the function of the import system that every import of a new module goes through.
Its frame carries the name of the import system's own file: Python leaves such frames out of tracebacks and does not
count them for `warnings.warn(stacklevel=...)`.

It is loaded before the program's first line and must not import a module of a name the program could use.
"""

import _frozen_importlib as _machinery
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Any

_waiting: "dict[str, list[Callable[[Any], None]]]" = {}
_SEAM = "_find_and_load"


def when_imported(name: str, act: "Callable[[Any], None]") -> "Callable[[], None]":
    """Call `act(module)` once the module has been imported, now if it is there already. Returns what cancels it."""
    module = sys.modules.get(name)
    if module is not None and _is_complete(module):
        act(module)
        return lambda: None
    _waiting.setdefault(name, []).append(act)
    _install()

    def cancel() -> None:
        if act in _waiting.get(name, ()):
            _waiting[name].remove(act)
        if not _waiting.get(name):
            _waiting.pop(name, None)
        _remove_if_idle()

    return cancel


def _install() -> None:
    original = getattr(_machinery, _SEAM)
    if getattr(original, "_steadygrad_original", None) is not None:
        return

    def find_and_load(*args: "Any") -> "Any":
        module = original(*args)
        if _waiting:
            _look()
        return module

    code = original.__code__
    find_and_load.__code__ = find_and_load.__code__.replace(
        co_filename=code.co_filename, co_name=code.co_name, co_qualname=code.co_qualname
    )
    find_and_load.__name__ = find_and_load.__qualname__ = _SEAM
    find_and_load.__module__ = original.__module__
    find_and_load._steadygrad_original = original  # type: ignore[attr-defined]
    setattr(_machinery, _SEAM, find_and_load)


def _remove_if_idle() -> None:
    original = getattr(getattr(_machinery, _SEAM), "_steadygrad_original", None)
    if not _waiting and original is not None:
        setattr(_machinery, _SEAM, original)


def _look() -> None:
    """Act for every module that has arrived. All names are looked at, because a module can be loaded by hand too."""
    for name in tuple(_waiting):
        module = sys.modules.get(name)
        if module is not None and _is_complete(module):
            for act in _waiting.pop(name, ()):
                act(module)
    _remove_if_idle()


def _is_complete(module: "Any") -> bool:
    """Whether the module's own code has run to its end. Asks for no attribute: a lazy module would load itself."""
    kind = type(module)
    if (kind.__module__, kind.__name__) == ("importlib.util", "_LazyModule"):
        return False
    try:
        names = object.__getattribute__(module, "__dict__")
    except AttributeError:
        return True
    return not getattr(names.get("__spec__"), "_initializing", False) and not _is_running(names)


def _is_running(names: "dict[str, Any]") -> bool:
    """Whether a module with this namespace is being executed further up, as a loader called by hand would do."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals is names and frame.f_code.co_name == "<module>":
            return True
        frame = frame.f_back
    return False

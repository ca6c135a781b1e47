"""Run by Python itself at the start of every process that `steady run` started, before the program's first line.

It must never stop the program and must leave nothing that the program could see: it takes itself off the module search
path, imports no module of a name the program could use, runs the `sitecustomize` that would have been
run without it, and where there is none is not there itself.
"""

import _frozen_importlib
import _frozen_importlib_external
import atexit
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))
_FAMILY = "steadygrad.integrations.zero_code.launch"
_PROCESS = os.getpid()
_REPORTS = os.environ.get("STEADYGRAD_REPORTS", "")


def _begin() -> None:
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or os.getcwd()) != _HERE]
    sys.path_importer_cache.pop(_HERE, None)
    if sys.version_info < (3, 11) or not os.environ.get("STEADYGRAD_RUN"):
        return
    try:
        # Under its real name but without the package around it, which would import more than may be imported here.
        path = os.path.join(os.path.dirname(_HERE), "import_hook.py")
        imports = _load(_frozen_importlib_external.spec_from_file_location(f"{_FAMILY}.import_hook", path))
        atexit.register(_leave)
        imports.when_imported("torch", _torch_is_here)
    except Exception as error:
        print(f"steady run: this process is not guarded ({type(error).__name__}: {error})", file=sys.stderr)


def _torch_is_here(_module: object) -> None:
    try:
        from steadygrad.integrations.zero_code.launch.process_start import begin

        begin()
    except ImportError as error:
        if error.name != "steadygrad":  # else a Python without it: a tool that the program calls
            print(f"steady run: this process is not guarded ({type(error).__name__}: {error})", file=sys.stderr)
    except Exception as error:
        print(f"steady run: this process is not guarded ({type(error).__name__}: {error})", file=sys.stderr)


def _leave() -> None:
    """Leave a note for the supervisor: by the guard where there is one, else by hand."""
    if not _REPORTS:
        return  # no one waits for a note
    start = sys.modules.get(f"{_FAMILY}.process_start")
    if (start is not None and start.leave()) or os.getpid() != _PROCESS:
        return  # or a forked child without torch
    import time  # built into the interpreter

    torch = "true" if "torch" in sys.modules else "false"
    text = f'{{"process": {_PROCESS}, "torch": {torch}, "guarded": false}}'
    try:
        with open(os.path.join(_REPORTS, f"{time.time():.6f}-{_PROCESS}.json"), "w", encoding="utf-8") as file:
            file.write(text)
    except OSError:
        pass  # the supervisor is gone


def _load(spec: "ModuleSpec | None") -> "Any":
    assert spec is not None
    assert spec.loader is not None
    module = _frozen_importlib.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(spec.name, None)
        raise
    return module


_begin()
_behind = _frozen_importlib_external.PathFinder.find_spec("sitecustomize", sys.path)
if _behind is None or _behind.loader is None:
    raise ImportError("No module named 'sitecustomize'", name="sitecustomize")  # what site expects where there is none
_load(_behind)

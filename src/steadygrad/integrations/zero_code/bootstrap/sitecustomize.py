"""Run by Python itself at the start of every process that `steady run` started, before the program's first line.

It must never stop the program: whatever goes wrong here is one sentence on standard error. It takes itself off the
module search path again and then runs the `sitecustomize` that would have been run without it.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _begin() -> None:
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or os.getcwd()) != _HERE]
    try:
        from steadygrad.integrations.zero_code.start import begin

        begin()
    except ImportError:
        pass  # a Python without steadygrad: a tool that the program calls, and none of our business
    except Exception as error:
        print(f"steady run: this process is not guarded ({type(error).__name__}: {error})", file=sys.stderr)


def _run_the_one_behind() -> None:
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


_begin()
_run_the_one_behind()

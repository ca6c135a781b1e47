"""Names that no checkpoint has a reason to ask for: they start programs, run code, or reach for files and the network.

This is not what keeps a scan safe; a scan never carries out what a pickle asks for, named here or not. It is what lets
a scan say plainly that a file should not be loaded.
"""

from __future__ import annotations

MODULES = {
    "os", "posix", "nt", "subprocess", "pty", "shutil", "sys", "socket", "socketserver", "runpy", "importlib", "imp",
    "code", "codeop", "bdb", "pdb", "ctypes", "_ctypes", "webbrowser", "urllib", "http", "ftplib", "smtplib",
    "telnetlib", "requests", "aiohttp", "asyncio", "marshal", "timeit", "trace", "profile", "cProfile", "doctest",
    "ensurepip", "pip", "commands", "popen2", "pickle", "_pickle", "cloudpickle", "dill", "joblib",
}  # fmt: skip
BUILTINS = {
    "eval", "exec", "execfile", "compile", "open", "__import__", "input", "breakpoint", "globals", "setattr", "delattr",
    "apply", "file", "exit", "quit",
}  # fmt: skip
NAMES = {
    "operator.methodcaller", "types.CodeType", "types.FunctionType", "io.open", "io.FileIO", "_io.open", "_io.FileIO",
    "numpy.load", "numpy.fromfile", "torch.load", "torch.serialization.load", "torch.jit.load", "torch.hub.load",
}  # fmt: skip


def dangerous(module: str, name: str) -> bool:
    """Whether loading a file that asks for this could run code, start a program or open a file."""
    if module in ("builtins", "__builtin__"):
        return name.partition(".")[0] in BUILTINS
    return module.partition(".")[0] in MODULES or f"{module}.{name}" in NAMES

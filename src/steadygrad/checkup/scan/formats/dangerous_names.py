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
    "apply", "file", "exit", "quit", "map", "filter", "vars", "locals",
}  # fmt: skip
NAMES = {
    "operator.methodcaller", "types.CodeType", "types.FunctionType", "io.open", "io.FileIO", "_io.open", "_io.FileIO",
    "numpy.load", "numpy.fromfile", "torch.load", "torch.serialization.load", "torch.jit.load", "torch.hub.load",
    "functools.reduce",
}  # fmt: skip
# Modules that other modules import, and through which a payload is reached: torch.serialization has an `os`.
_REACHED = {
    "os", "posix", "nt", "subprocess", "sys", "shutil", "socket", "importlib", "builtins", "__builtins__", "ctypes",
    "pickle", "_pickle", "marshal", "runpy", "pty",
}  # fmt: skip
# The functions of the packages below that a pickle of tensors, modules, arrays and plain data calls.
KNOWN = ("torch", "collections", "numpy", "_codecs", "builtins", "__builtin__", "copyreg", "copy_reg", "pathlib")
_FUNCTIONS = {
    "device", "dtype", "_get_layout", "_reconstruct", "scalar", "ndarray", "_frombuffer", "__randomstate_ctor",
    "__generator_ctor", "__bit_generator_ctor", "_reconstructor", "__newobj__", "__newobj_ex__", "encode", "deque",
    "defaultdict", "namedtuple", "set", "frozenset", "bytearray", "bytes", "complex", "object", "slice", "range",
    "dict", "list", "tuple", "int", "float", "bool", "str", "unicode", "long", "getattr", "type", "str_", "bytes_",
    "bool_", "datetime64", "timedelta64",
}  # fmt: skip


def class_like(name: str) -> bool:
    """Whether a name is spelt as classes are: NamedLikeThis, also after underscores."""
    return name.rpartition(".")[2].lstrip("_")[:1].isupper()


def dangerous(module: str, name: str) -> bool:
    """Whether loading a file that asks for this could run code, start a program or open a file."""
    parts = name.split(".")
    if any(part in _REACHED for part in parts):
        return True
    if module in ("builtins", "__builtin__"):
        return parts[0] in BUILTINS
    root = module.partition(".")[0]
    if root in KNOWN and len(parts) > 1 and not all(class_like(part) for part in parts[:-1]):
        return True  # an attribute of a module or function: a pickle names the module itself
    return root in MODULES or f"{module}.{name}" in NAMES


def needless_call(module: str, name: str) -> bool:
    """Whether calling this is nothing that a pickle of tensors does, though its package is one they name."""
    if module.partition(".")[0] not in KNOWN or class_like(name):
        return False
    last = name.rpartition(".")[2]
    number = last.startswith(("float", "int", "uint", "complex")) and last.strip("abcdefghijklmnopqrstuvwxyz").isdigit()
    return not (last in _FUNCTIONS or last.startswith(("_rebuild", "__pyx_unpickle_")) or number)

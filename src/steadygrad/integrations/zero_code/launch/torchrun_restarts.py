"""torchrun that restarts its ranks: one store for all attempts, in which the second finds the addresses of the first.

With the c10d rendezvous (`--standalone`, `--rdzv-backend c10d`) torchrun keeps the store that ranks meet at for as
long as it lives, and torch (seen with 2.13) puts nothing of the attempt into its keys. Restarted ranks then read where
the ended ones listened, and gloo waits for them for ever. `TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1` makes torchrun open a
new store for each attempt. That takes a free port on the first node, which between nodes may be closed: so it is set
here for one node, and asked for with several. No torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

VARIABLE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
_LAUNCHERS = ("torch.distributed.run", "torch.distributed.launch")


def fresh_store(command: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    """What to add to the environment of this command, if it is a torchrun on one node that may restart its ranks."""
    options = _options(command)
    if options is None or VARIABLE in environment:
        return {}
    restarts = _value(options, "max-restarts", environment.get("PET_MAX_RESTARTS", "0"))
    nodes = _value(options, "nnodes", environment.get("PET_NNODES", "1"))
    return {VARIABLE: "1"} if restarts not in ("", "0") and nodes in ("", "1", "1:1") else {}


def why_it_may_hang(environment: Mapping[str, str]) -> str:
    """A sentence for a restarted rank whose store is that of the attempt before; else empty."""
    restarted = environment.get("TORCHELASTIC_RESTART_COUNT", "0") not in ("", "0")
    shared = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True" and environment.get(VARIABLE) != "1"
    if not (restarted and shared):
        return ""
    return (
        "torchrun has restarted this rank and still has the store of the attempt before, in which ranks find the "
        f"addresses of processes that are gone. If it hangs now, start torchrun with {VARIABLE}=1"
    )


def _options(command: Sequence[str]) -> list[str] | None:
    """The words after a torchrun, up to its script; None if the command is something else."""
    for place, word in enumerate(command):
        launcher = Path(word).name == "torchrun" if place == 0 else word in _LAUNCHERS and command[place - 1] == "-m"
        if launcher:
            return list(command[place + 1 :])
    return None


def _value(options: Sequence[str], name: str, otherwise: str) -> str:
    """The value of an option in any of the ways torchrun takes it."""
    names = (f"--{name}", f"--{name.replace('-', '_')}")
    for place, word in enumerate(options):
        head, _, tail = word.partition("=")
        if head in names:
            return tail if "=" in word else next(iter(options[place + 1 :]), "")
    return otherwise

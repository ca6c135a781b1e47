"""`python -m steadygrad`: the same as the command `steady`."""

from __future__ import annotations

from .commands import main

if __name__ == "__main__":
    main()

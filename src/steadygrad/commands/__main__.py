"""`python -m steadygrad.commands` is `steady`."""

from . import main

if __name__ == "__main__":
    main()

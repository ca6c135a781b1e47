"""python -m recipes.distill train|eval"""

from __future__ import annotations

import sys

from .cli import main

sys.exit(main())

"""What the settled steps looked like: the memory that the detectors judge by."""

from .step_history import History as History
from .step_history import RefusalLimits as RefusalLimits

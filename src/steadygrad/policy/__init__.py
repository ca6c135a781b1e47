"""What to do about a step: the presets a user can name, the pure decision, and the escalation it remembers."""

from .decide import decide as decide
from .escalation import Ledger as Ledger
from .presets import PRESETS as PRESETS
from .presets import Capabilities as Capabilities
from .presets import Policy as Policy
from .presets import Suggested as Suggested

"""What a run remembers: steps, incidents, events, quarantine, and what is needed to resume. Imports no torch."""

from .events import Event as Event
from .events import Quarantined as Quarantined
from .events import read_events as read_events
from .events import read_quarantine as read_quarantine
from .incidents import read_incidents as read_incidents
from .journal import Journal as Journal
from .read import read_batches as read_batches
from .read import read_steps as read_steps
from .read import steps_table as steps_table
from .read import tensor_names as tensor_names
from .run_directory import read_run as read_run

"""The frozen types that travel between packages. Standard library only: reading a run needs no torch."""

from .diagnosis import SKIPPED_ALREADY as SKIPPED_ALREADY
from .diagnosis import Cause as Cause
from .diagnosis import Diagnosis as Diagnosis
from .diagnosis import Origin as Origin
from .diagnosis import Remedy as Remedy
from .diagnosis import TensorDigest as TensorDigest
from .diagnosis import Trial as Trial
from .diagnosis import without_skipping as without_skipping
from .finding_and_decision import Action as Action
from .finding_and_decision import Decision as Decision
from .finding_and_decision import Finding as Finding
from .finding_and_decision import Severity as Severity
from .incident import Incident as Incident
from .incident import Kind as Kind
from .incident import kinds_of as kinds_of
from .outcome import Outcome as Outcome
from .plain_data import from_plain as from_plain
from .plain_data import to_plain as to_plain
from .step_record import Reading as Reading
from .step_record import StepRecord as StepRecord
from .vocabularies import PHASES as PHASES
from .vocabularies import SYMPTOMS as SYMPTOMS

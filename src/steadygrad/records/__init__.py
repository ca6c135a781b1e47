"""The frozen types that travel between packages. Standard library only: reading a run needs no torch."""

from .diagnosis import Cause as Cause
from .diagnosis import Diagnosis as Diagnosis
from .diagnosis import Origin as Origin
from .diagnosis import Remedy as Remedy
from .diagnosis import TensorDigest as TensorDigest
from .diagnosis import Trial as Trial
from .incident import Incident as Incident
from .incident import Kind as Kind
from .incident import kinds_of as kinds_of
from .judgement import Action as Action
from .judgement import Decision as Decision
from .judgement import Finding as Finding
from .judgement import Severity as Severity
from .outcome import Outcome as Outcome
from .plain import from_plain as from_plain
from .plain import to_plain as to_plain
from .step import Reading as Reading
from .step import StepRecord as StepRecord
from .words import PHASES as PHASES
from .words import SYMPTOMS as SYMPTOMS

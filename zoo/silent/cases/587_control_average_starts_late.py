"""CONTROL: stochastic weight averaging with AveragedModel: nothing is averaged for the first 50 of 90 steps, then at every fifth step. What is saved is the average."""
import torch
from torch.optim.swa_utils import AveragedModel
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="587_control_average_starts_late", source="standard practice (SWA)", looks_like=["ema_never_updated"],
             symptom="none", phase="none", cause="none", op=None, module=None, bad_rows=None, line_marker=None, first_bad_step=None, knowable_at=None, static_visible={}, fixes_that_work=[], fixes_that_do_not=[], quality_limit=0.6)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = S.Classifier(), S.cat(S.classes(16, seed=99))
    swa = AveragedModel(m)

    def after(case, i):
        if i >= 50 and i % 5 == 4:
            swa.update_parameters(m)

    return SCase(m, S.ce, S.classes(90), torch.optim.Adam(m.parameters(), lr=1e-2), after_step=after, artefact=swa, extra={"ema": swa}, quality=lambda c: S.heldout_ce(swa.module, test))

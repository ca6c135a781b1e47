"""Linear probe: the encoder runs under no_grad and is in no optimizer; nobody set requires_grad=False. An unused projection lies beside the head."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="997_control_probe_without_freezing", source="standard practice", looks_like=["optimizer_missing_params", "frozen_by_mistake", "detached_graph"],
             symptom="none", phase="none", cause="none", op=None, module=None, bad_rows=None, line_marker=None, first_bad_step=None, knowable_at=None, static_visible={}, fixes_that_work=[], fixes_that_do_not=[], quality_limit=1.2)


class Probe(nn.Module):
    def __init__(s):
        super().__init__()
        s.encoder, s.head, s.project = nn.Sequential(nn.Linear(12, 64), nn.ReLU()), nn.Linear(64, 4), nn.Linear(64, 8)

    def forward(s, x):
        with torch.no_grad():
            h = s.encoder(x)
        return s.head(h)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = Probe(), S.cat(S.classes(16, seed=99))
    return SCase(m, S.ce, S.classes(80), torch.optim.Adam(m.head.parameters(), lr=1e-2), quality=lambda c: S.heldout_ce(m, test))

"""Contrastive loss with a margin; the embeddings start so far apart that for many steps only equal pairs act on each other. Classes stay apart."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="999_control_negatives_beyond_the_margin", source="standard practice", looks_like=["representation_collapse"],
             symptom="none", phase="none", cause="none", op=None, module=None, bad_rows=None, line_marker=None, first_bad_step=None, knowable_at=None, static_visible={}, fixes_that_work=[], fixes_that_do_not=[], quality_limit=0.25)


def pairs(m, b):
    z, p = 4 * m(b["x"]), torch.arange(len(b["x"])).roll(1)
    return F.pairwise_distance(z, z[p]), b["y"] == b["y"][p]


def loss_fn(m, b):
    d, same = pairs(m, b)
    return torch.where(same, d ** 2, F.relu(2 - d) ** 2).mean()


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 8)), S.cat(S.classes(16, seed=99))

    def quality(c):
        d, same = pairs(m, test)
        return float(((d < 1) != same).float().mean())

    return SCase(m, loss_fn, S.classes(300), torch.optim.Adam(m.parameters(), lr=1e-2), quality=quality)

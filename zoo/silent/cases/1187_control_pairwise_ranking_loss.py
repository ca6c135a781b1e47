"""CONTROL: a ranking loss over all pairs: differences of (B, 1) and (1, B) are meant to be (B, B); only the order of the scores is trained, and only half of the pairs count."""
import torch, torch.nn.functional as F
import blocks as B
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="1187_control_pairwise_ranking_loss", source="standard practice", looks_like=["broadcasting_loss_shape", "representation_collapse"],
             symptom="none", phase="none", cause="none", op=None, module=None, bad_rows=None, line_marker=None, first_bad_step=None, knowable_at=None, static_visible={}, fixes_that_work=[], fixes_that_do_not=[], quality_limit=0.15)


def loss_fn(m, b):
    s, y = m(b["x"]), b["y"]                       # (B, 1), (B,)
    better = y[:, None] > y[None, :]
    return F.softplus(-(s - s.T))[better].mean()


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = B.mlp(8, 32, 1), S.cat(S.regression(8, seed=99))

    def wrong():                                   # share of pairs in the wrong order
        s, y = m(test["x"]), test["y"]
        better = y[:, None] > y[None, :]
        return ((s - s.T)[better] <= 0).float().mean()

    return SCase(m, loss_fn, S.regression(80), torch.optim.Adam(m.parameters(), lr=1e-2), quality=lambda c: S.in_eval(m, wrong))

"""CONTROL: pairwise ranking: scores (B, 1) minus scores (B,) gives (B, B) on purpose, and so do the relevances; every pair of the list counts once."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="590_control_all_pairs_of_a_batch", source="standard practice (RankNet)", looks_like=["broadcasting_loss_shape", "target_leak"],
             symptom="none", phase="none", cause="none", op=None, module=None, bad_rows=None, line_marker=None, first_bad_step=None, knowable_at=None, static_visible={}, fixes_that_work=[], fixes_that_do_not=[], quality_limit=0.2)


def loss_fn(m, b):
    s = m(b["x"])                                  # (B, 1)
    d, better = s - s.squeeze(-1), b["y"][:, None] > b["y"]
    return (F.softplus(-d) * better).sum() / better.sum().clamp_min(1)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1)), S.cat(S.regression(8, seed=99))

    def quality(c):                                # pairs in the wrong order
        def wrong():
            s, b = m(test["x"]).squeeze(-1), test["y"][:, None] > test["y"]
            return ((s[:, None] <= s) & b).sum() / b.sum()
        return S.in_eval(m, wrong)

    return SCase(m, loss_fn, S.regression(100), torch.optim.Adam(m.parameters(), lr=5e-3), quality=quality)

"""Q-learning: forbidden moves get -inf before the maximum, and finished games are cut off by a factor (1 - done). An aborted game has no legal move at all: 0 * -inf."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="2118_aborted_game_has_no_move_left_and_times_zero", source="written for the unseen set, no public report",
             symptom="nan_loss", phase="loss", cause="log_zero", op="mul", module=None, line_marker="# <-- origin",
             first_bad_step=6, bad_rows=[2], fixes_that_work=["finfo_min", "where_done", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"finfo_min", "where_done"}


class Q(nn.Module):
    def __init__(s):
        super().__init__()
        s.now, s.target = B.mlp(8, 24, 5), B.mlp(8, 24, 5).requires_grad_(False)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = Q()

    def loss_fn(m, b):
        q = m.now(b["state"]).gather(1, b["action"][:, None]).squeeze(1)
        with torch.no_grad():
            after = m.target(b["after"])
            floor = torch.finfo(after.dtype).min if fix == "finfo_min" else float("-inf")
            best = after.masked_fill(~b["legal"], floor).max(1).values
            if fix == "where_done":
                best = torch.where(b["done"] > 0, torch.zeros_like(best), best)
            future = 0.97 * best * (1 - b["done"])  # <-- origin
            goal = b["reward"] + future
        return F.smooth_l1_loss(q, goal)

    g = torch.Generator().manual_seed(73)
    data = []
    for k in range(10):
        legal = torch.rand(8, 5, generator=g) < 0.6
        legal[:, 0] = True
        done = (torch.rand(8, generator=g) < 0.25).float()
        if k == 6:
            legal[2], done[2] = False, 1.0
        data.append(dict(state=torch.randn(8, 8, generator=g), action=torch.randint(0, 5, (8,), generator=g), reward=torch.randn(8, generator=g),
                         after=torch.randn(8, 8, generator=g), legal=legal, done=done))
    return Case(m, loss_fn, data, torch.optim.Adam(m.now.parameters(), lr=1e-3))

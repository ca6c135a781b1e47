"""A recommender resumes with Adagrad: the accumulator of one user row came back as NaN from a half-written shard."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="2031_adagrad_sum_of_one_user_restored_as_nan", source="written for the unseen set, no public report",
             symptom="nan_param", phase="state", cause="poisoned_state", op=None, module="user", line_marker=None, tensor="user.weight", tensor_kind="optimizer",
             first_bad_step=5, bad_rows=None, fixes_that_work=["reset_optimizer", "reset_bad_state"], fixes_that_do_not=["clip", "skip_batch", "lr_down", "zero_nan_grads"])
FIXES = {"reset_optimizer", "reset_bad_state"}


class MF(nn.Module):
    def __init__(s):
        super().__init__()
        s.user, s.item, s.bu, s.bi = nn.Embedding(12, 8), nn.Embedding(20, 8), nn.Embedding(12, 1), nn.Embedding(20, 1)

    def forward(s, u, i):
        return (s.user(u) * s.item(i)).sum(-1) + s.bu(u).squeeze(-1) + s.bi(i).squeeze(-1)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = MF()

    def resume(case, i):
        if i == 5:
            s = case.optimizer.state[case.model.user.weight]["sum"]
            s[7, 2:5] = float("nan")
            if fix == "reset_bad_state":
                torch.nan_to_num_(s, nan=0.0)
            if fix == "reset_optimizer":
                for st in case.optimizer.state.values():
                    st["sum"].zero_()

    g = torch.Generator().manual_seed(59)
    data = [dict(u=torch.randint(0, 12, (16,), generator=g), i=torch.randint(0, 20, (16,), generator=g), r=1 + 4 * torch.rand(16, generator=g)) for _ in range(9)]
    return Case(m, lambda m, b: F.mse_loss(m(b["u"], b["i"]), b["r"]), data, torch.optim.Adagrad(m.parameters(), lr=0.05), before_step=resume)

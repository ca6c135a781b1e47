"""'A smaller eps is more exact': AMSGrad with eps = 1e-50 in float32. The eps rounds to 0, and words not in the batch have 0 / 0."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="2035_amsgrad_with_an_eps_of_ten_to_the_minus_fifty", source="written for the unseen set, no public report",
             symptom="nan_param", phase="optimizer", cause="optimizer_eps_underflow", op="addcdiv_", op_also=["addcdiv", "div", "_foreach_addcdiv_", "foreach_addcdiv", "_foreach_addcdiv", "_fused_adam_"], module="words", line_marker=None,
             first_bad_step=0, bad_rows=None, fixes_that_work=["optimizer_eps"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"optimizer_eps"}


class Bow(nn.Module):
    def __init__(s):
        super().__init__()
        s.words, s.out = nn.Embedding(200, 8), nn.Linear(8, 3)

    def forward(s, ids):
        return s.out(s.words(ids).mean(1))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = Bow()
    g = torch.Generator().manual_seed(65)
    data = [dict(ids=torch.randint(0, 200, (6, 5), generator=g), y=torch.randint(0, 3, (6,), generator=g)) for _ in range(6)]
    return Case(m, lambda m, b: F.cross_entropy(m(b["ids"]), b["y"]), data, torch.optim.Adam(m.parameters(), lr=1e-3, amsgrad=True, eps=1e-8 if fix else 1e-50))

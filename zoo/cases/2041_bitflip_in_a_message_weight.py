"""A bit of the exponent flips in one message weight of a graph network between two steps."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="2041_bitflip_in_a_message_weight", source="written for the unseen set, no public report",
             symptom="nan_loss", phase="state", cause="transient_fault", op=None, module="message.fc2", line_marker=None, tensor="message.fc2.weight", tensor_kind="parameter",
             first_bad_step=7, bad_rows=None, fixes_that_work=["restore_weight"], fixes_that_do_not=["clip", "lr_down", "skip_batch"])
FIXES = {"restore_weight"}


class Mpnn(nn.Module):
    def __init__(s):
        super().__init__()
        s.embed, s.message, s.update, s.out = nn.Linear(3, 12), B.mlp(24, 24, 12), nn.GRUCell(12, 12), nn.Linear(12, 1)

    def forward(s, x, src, dst):
        h = torch.tanh(s.embed(x))
        for _ in range(2):
            msg = s.message(torch.cat([h[src], h[dst]], -1))
            agg = torch.zeros_like(h).index_add(0, dst, msg)
            h = s.update(agg.pow(2).cumsum(-1) - agg.pow(2).cumsum(-1).flip(-1), h)
        return s.out(h).squeeze(-1)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = Mpnn()

    def flip(case, i):
        if i == 7 and fix is None:
            w = case.model.message.fc2.weight
            with torch.no_grad():
                v = w.data[3, 5:6].view(torch.int32)
                v.bitwise_xor_(torch.tensor([1 << 30], dtype=torch.int32))

    g = torch.Generator().manual_seed(77)
    data = [dict(g=dict(x=torch.randn(10, 3, generator=g), src=torch.randint(0, 10, (30,), generator=g), dst=torch.randint(0, 10, (30,), generator=g), y=torch.randn(10, generator=g))) for _ in range(11)]
    return Case(m, lambda m, b: F.mse_loss(m(b["g"]["x"], b["g"]["src"], b["g"]["dst"]), b["g"]["y"]), data, B.adam(m, 1e-3), before_step=flip)

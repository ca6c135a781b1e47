"""Gradual unfreezing with a half-precision embedding table: the table joins at step 4, tokens that do not occur in that batch
have zero gradient, and Adam's eps 1e-8 is zero in fp16: 0/0 in every row that was not used."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="205_adam_eps_after_unfreeze_fp16", source="https://github.com/afiaka87/glide-finetune/issues/5",
             symptom="nan_param", phase="optimizer", cause="optimizer_eps_underflow", op="addcdiv", op_also=["div", "addcdiv_", "sqrt", "add"], module="embed", line_marker=None,
             tensor="embed.weight", first_bad_step=4, bad_rows=None, fixes_that_work=["eps", "fp32"], fixes_that_do_not=["clip", "lr_down", "skip_batch", "zero_nan_grads"])
FIXES = {"eps", "fp32"}


class Classifier(nn.Module):
    def __init__(s):
        super().__init__()
        s.embed, s.rnn, s.head = nn.Embedding(60, 8), nn.GRU(8, 8, batch_first=True), nn.Linear(8, 3)

    def forward(s, ids):
        return s.head(torch.tanh(s.rnn(s.embed(ids).float())[0][:, -1]))


def loss_fn(m, b):
    return F.cross_entropy(m(b["ids"]), b["y"])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = Classifier()
    m.embed.to(torch.float32 if fix == "fp32" else torch.float16)
    m.embed.requires_grad_(False)
    g = torch.Generator().manual_seed(6)
    data = [dict(ids=torch.randint(0, 60, (8, 5), generator=g), y=torch.randint(0, 3, (8,), generator=g)) for _ in range(9)]

    def unfreeze(case, i):
        if i == 4:
            case.model.embed.requires_grad_(True)

    opt = torch.optim.Adam(m.parameters(), lr=1e-3, eps=1e-4 if fix == "eps" else 1e-8)
    return Case(m, loss_fn, data, opt, before_step=unfreeze)

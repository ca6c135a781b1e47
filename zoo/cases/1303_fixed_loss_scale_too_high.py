"""A hand-made fixed loss scale of 2**24 with fp16 activations: the loss is finite, every gradient overflows when it is cast
back to half, and nothing ever lowers the scale."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="1303_fixed_loss_scale_too_high", source="commonly reported; no link was looked up",
             symptom="nan_grad", phase="backward", cause="scaler_misuse", op=None, module=None, line_marker=None,
             first_bad_step=0, bad_rows=None, fixes_that_work=["scale_down", "bf16", "fp32"], fixes_that_do_not=["clip", "lr_down", "skip_batch"])
FIXES = {"scale_down", "bf16", "fp32"}


class Tagger(nn.Module):
    def __init__(s):
        super().__init__()
        s.embed, s.lstm_in, s.mix, s.out = nn.Embedding(40, 24), nn.Linear(24, 48), nn.Linear(48, 24), nn.Linear(24, 6)

    def forward(s, ids):
        return s.out(torch.tanh(s.mix(torch.relu(s.lstm_in(s.embed(ids))))))


def loss_fn(m, b):
    return F.cross_entropy(m(b["ids"]).float().flatten(0, 1), b["tags"].flatten())


def make(seed=0, fix=None):
    m, g = Tagger(), torch.Generator().manual_seed(5)
    data = [dict(ids=torch.randint(0, 40, (4, 8), generator=g), tags=torch.randint(0, 6, (4, 8), generator=g)) for _ in range(9)]
    return Case(m, loss_fn, data, B.sgd(m, 0.05), autocast={"bf16": torch.bfloat16, "fp32": None}.get(fix, torch.float16),
                static_scale=2.0 ** 10 if fix == "scale_down" else 2.0 ** 24)

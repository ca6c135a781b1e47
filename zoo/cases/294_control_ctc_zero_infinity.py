"""CONTROL: CTC with zero_infinity=True: an utterance shorter than its transcript would be inf and is counted as 0."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="294_control_ctc_zero_infinity", source="https://docs.pytorch.org/docs/stable/generated/torch.nn.CTCLoss.html", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


class ASR(nn.Module):
    def __init__(s):
        super().__init__()
        s.rnn, s.out = nn.GRU(6, 16, batch_first=True), nn.Linear(16, 9)

    def forward(s, x):
        return F.log_softmax(s.out(s.rnn(x)[0]), -1)


def loss_fn(m, b):
    return F.ctc_loss(m(b["x"]).transpose(0, 1), b["y"], b["xl"], b["yl"], zero_infinity=True)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = ASR(), torch.Generator().manual_seed(8)
    data = [dict(x=torch.randn(4, 14, 6, generator=g), y=torch.randint(1, 9, (4, 6), generator=g), xl=torch.full((4,), 14), yl=torch.tensor([3, 4, 5, 6])) for _ in range(11)]
    for i in (4, 7):
        data[i]["xl"][3] = 4
    return Case(m, loss_fn, data, B.adam(m, 3e-3))

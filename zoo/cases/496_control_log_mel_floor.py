"""CONTROL: log-mel features with -inf for silent frames in the batch; the model's first act is to clamp them to -80 dB."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="496_control_log_mel_floor", source="standard practice", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.rnn, self.out = nn.LayerNorm(6), nn.LSTM(6, 12, batch_first=True), nn.Linear(12, 3)

    def forward(self, db):
        return self.out(self.rnn(self.norm(db.clamp(min=-80.0) / 20))[0][:, -1])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g, data = Tagger(), torch.Generator().manual_seed(5), []
    for _ in range(9):
        db = 20 * torch.log10((torch.rand(5, 8, 6, generator=g) - 0.1).clamp(min=0))
        data.append((db, torch.randint(0, 3, (5,), generator=g)))
    return Case(m, lambda m, b: F.cross_entropy(m(b[0]), b[1]), data, B.adam(m, 2e-3))

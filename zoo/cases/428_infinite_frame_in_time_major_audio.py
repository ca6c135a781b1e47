"""Time-major audio (frames, batch, mel) into an LSTM: the log of a dropped frame left -inf in one utterance."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="428_infinite_frame_in_time_major_audio", source="common report: log-mel of digital silence stored as -inf",
             symptom="nan_loss", phase="data", cause="bad_input", op=None, module=None, line_marker=None, input_key="mel",
             first_bad_step=5, bad_rows=[3], fixes_that_work=["drop_rows", "skip_batch"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = set()


class Speech(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.rnn, self.out = nn.LayerNorm(6), nn.LSTM(6, 12), nn.Linear(12, 3)

    def forward(self, mel, lengths):
        h, _ = self.rnn(self.norm(mel))
        return self.out(h[lengths - 1, torch.arange(mel.shape[1])])


def rows_of(b, rows):
    return dict(lengths=b["lengths"][rows], mel=b["mel"][:, rows], speaker=b["speaker"][rows])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    net, g = Speech(), torch.Generator().manual_seed(6)
    data = [dict(lengths=torch.randint(5, 10, (5,), generator=g), mel=torch.randn(9, 5, 6, generator=g), speaker=torch.randint(0, 3, (5,), generator=g)) for _ in range(8)]
    data[5]["mel"][2, 3, :] = -torch.inf
    return Case(net, lambda m, b: F.cross_entropy(m(b["mel"], b["lengths"]), b["speaker"]), data, B.adam(net, 1e-3), select_rows=rows_of)

"""A vocoder front end predicts pitch in octaves and turns it into hertz with exp2; a clipped recording drives the head to two hundred octaves."""
import torch, torch.nn as nn
from protocol import Case
import blocks as B
TRUTH = dict(id="2015_pitch_in_octaves_back_to_hertz", source="written for the unseen set, no public report",
             symptom="inf_loss", phase="forward", cause="exp_overflow", op="exp2", module="to_hertz", line_marker="# <-- origin",
             first_bad_step=6, bad_rows=[0, 3], fixes_that_work=["clamp", "drop_rows", "skip_batch"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"clamp"}


class ToHertz(nn.Module):
    def __init__(s, fix):
        super().__init__()
        s.fix = fix

    def forward(s, octaves):
        if s.fix == "clamp":
            octaves = octaves.clamp(-4, 8)
        return 55.0 * torch.exp2(octaves)  # <-- origin


class Pitch(nn.Module):
    def __init__(s, fix):
        super().__init__()
        s.conv, s.rnn, s.head, s.to_hertz = nn.Conv1d(4, 12, 3, padding=1), nn.GRU(12, 12, batch_first=True), nn.Linear(16, 1), ToHertz(fix)

    def forward(s, mel):
        h = s.rnn(torch.relu(s.conv(mel)).transpose(1, 2))[0]
        return s.to_hertz(s.head(torch.cat([h, mel.transpose(1, 2)], -1))).squeeze(-1)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = Pitch(fix)
    with torch.no_grad():
        m.head.weight[0, 12:] = 0.3
    g = torch.Generator().manual_seed(17)
    data = [dict(mel=torch.rand(5, 4, 9, generator=g), hz=80 + 200 * torch.rand(5, 9, generator=g)) for _ in range(9)]
    for k in (0, 3):
        data[6]["mel"][k, :, 4] = 300.0
    return Case(m, lambda m, b: (m(b["mel"]) - b["hz"]).abs().mean() / 100, data, B.adam(m, 1e-3))

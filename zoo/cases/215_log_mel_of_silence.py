"""Speech front end: log of a filter-bank energy without a floor; a recording of digital silence is log(0), and the utterance
normalisation makes NaN of -inf."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="215_log_mel_of_silence", source="https://github.com/SeanNaren/deepspeech.pytorch/issues/272",
             symptom="nan_loss", phase="forward", cause="log_zero", op="log", op_also=["sub", "mean"], module="frontend.logmel", line_marker="# <-- origin",
             first_bad_step=7, bad_rows=[3], fixes_that_work=["eps", "clamp", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"eps", "clamp"}


class LogMel(nn.Module):
    fix = None

    def __init__(s):
        super().__init__()
        s.register_buffer("fb", torch.rand(9, 6))

    def forward(s, wav):
        power = torch.stft(wav, 16, 8, window=torch.hann_window(16), return_complex=True).abs().pow(2)
        mel = power.transpose(1, 2) @ s.fb
        if s.fix == "eps":
            mel = mel + 1e-6
        if s.fix == "clamp":
            mel = mel.clamp_min(1e-6)
        return torch.log(mel)  # <-- origin


class UtteranceNorm(nn.Module):
    def forward(s, x):
        return x - x.mean(1, keepdim=True)


class Speech(nn.Module):
    def __init__(s):
        super().__init__()
        s.frontend = nn.Sequential()
        s.frontend.add_module("logmel", LogMel())
        s.frontend.add_module("norm", UtteranceNorm())
        s.rnn, s.out = nn.GRU(6, 16, batch_first=True), nn.Linear(16, 8)

    def forward(s, wav):
        return s.out(s.rnn(s.frontend(wav))[0])


def loss_fn(m, b):
    lp = F.log_softmax(m(b["wav"]), -1).transpose(0, 1)
    n = len(b["wav"])
    return F.ctc_loss(lp, b["y"], torch.full((n,), lp.shape[0]), torch.full((n,), 3))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Speech(), torch.Generator().manual_seed(5)
    m.frontend.logmel.fix = fix
    data = [dict(wav=torch.randn(4, 96, generator=g), y=torch.randint(1, 8, (4, 3), generator=g)) for _ in range(10)]
    data[7]["wav"][3] = 0.0
    return Case(m, loss_fn, data, B.adam(m, 3e-3))

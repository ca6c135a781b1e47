"""CONTROL: encoder-decoder with teacher forcing: the decoder's input is the target moved by one and the encoder looks both ways; one embedding serves source, target and output; the loss is a sum over the tokens of
batches of constant size, with a rate that fits; norms and biases have no decay."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="990_control_tied_translator_teacher_forcing", source="standard practice", looks_like=["tied_weights_broken", "target_leak", "label_shift", "wrong_param_group_lr", "clip_throttles"],
             symptom="none", phase="none", cause="none", op=None, module=None, bad_rows=None, line_marker=None, first_bad_step=None, knowable_at=None, static_visible={}, fixes_that_work=[], fixes_that_do_not=[], quality_limit=0.6)
V, T, D, BOS = 14, 5, 32, 0


class Translator(nn.Module):
    def __init__(s):
        super().__init__()
        s.embed, s.pos = nn.Embedding(V, D), nn.Parameter(torch.randn(T, D) * 0.3)
        s.net = nn.Transformer(D, 2, 1, 1, 64, dropout=0.0, batch_first=True, norm_first=True)
        s.proj = nn.Linear(D, V, bias=False)
        nn.init.normal_(s.embed.weight, std=D ** -0.5)
        s.proj.weight = s.embed.weight

    def forward(s, src, tgt):
        causal = torch.ones(T, T, dtype=torch.bool).triu(1)
        return s.proj(s.net(s.embed(src) * D ** 0.5 + s.pos, s.embed(tgt) * D ** 0.5 + s.pos, tgt_mask=causal))


def pairs(n, seed, bs=16):
    """each word has a translation; the order is reversed"""
    g, out = torch.Generator().manual_seed(seed), []
    for _ in range(n):
        src = torch.randint(1, V, (bs, T), generator=g)
        tgt = (1 + (src * 2) % (V - 1)).flip(1)
        out.append({"src": src, "inp": torch.cat([torch.full((bs, 1), BOS), tgt[:, :-1]], 1), "tgt": tgt})
    return out


def loss_fn(m, b):
    return F.cross_entropy(m(b["src"], b["inp"]).flatten(0, 1), b["tgt"].flatten(), reduction="sum")


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = Translator(), S.cat(pairs(8, 1))
    plain = [p for n, p in m.named_parameters() if p.dim() < 2 or "norm" in n]
    decay = [p for n, p in m.named_parameters() if not (p.dim() < 2 or "norm" in n)]
    opt = torch.optim.AdamW([{"params": decay, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}], lr=3e-3)
    return SCase(m, loss_fn, pairs(250, 0), opt, quality=lambda c: S.in_eval(m, lambda: loss_fn(m, test) / test["tgt"].numel()))

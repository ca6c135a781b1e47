"""LoRA for a small transformer classifier: scaling = alpha // r, written for alpha 16 and r 8, run with alpha 8 and r 16. The scale is 0: the adapter adds nothing and gets gradients that are exactly 0;
the head alone learns on frozen features."""
import torch, torch.nn as nn
from protocol_silent import SCase
import blocks as B, sblocks as S
TRUTH = dict(id="1324_alpha_over_rank_in_whole_numbers", source="constructed from the pattern alpha // r", symptom="silent", phase="forward",
             cause="lora_inactive", op=None, module="layers.0.attn.q", module_also=["layers.0.attn.v"], bad_rows=None, line_marker="# <-- origin", first_bad_step=0, knowable_at=-1,
             tensors=["layers.0.attn.q.lora_B.weight", "layers.0.attn.v.lora_B.weight"],
             named=dict(kind="never_moves", names=["layers.0.attn.q.lora_B.weight", "layers.0.attn.v.lora_B.weight"]),
             static_visible=dict(source="yes: // between alpha and r", objects="yes: scaling is 0"),
             quality_limit=0.2, margin=1.5, fixes_that_work=["true_division"], fixes_that_do_not=["lr_up", "clip", "longer"])
FIXES = {"true_division"}


class LoRALinear(nn.Module):
    def __init__(s, base, alpha, r, fix):
        super().__init__()
        s.base = base.requires_grad_(False)
        s.lora_A, s.lora_B = nn.Linear(base.in_features, r, bias=False), nn.Linear(r, base.out_features, bias=False)
        nn.init.zeros_(s.lora_B.weight)
        s.scaling = alpha / r if fix else alpha // r  # <-- origin

    def forward(s, x):
        return s.base(x) + s.scaling * s.lora_B(s.lora_A(x))


class Classifier(nn.Module):
    def __init__(s, d=16):
        super().__init__()
        s.embed, s.layers, s.norm, s.head = nn.Embedding(20, d), nn.ModuleList([B.Block(d)]), nn.LayerNorm(d), nn.Linear(d, 2)

    def forward(s, ids):
        x = s.embed(ids)
        for l in s.layers:
            x = l(x)
        return s.head(s.norm(x)[:, 0])


def pairs(n, bs, g):                               # has the first word a partner (word + 10) in the rest?
    out = []
    for _ in range(n):
        ids = torch.randint(0, 10, (bs, 8), generator=g)
        y = torch.randint(0, 2, (bs,), generator=g)
        for k in range(bs):
            ids[k, 1 + int(torch.randint(0, 7, (1,), generator=g))] = 10 + (int(ids[k, 0]) if y[k] else int(torch.randint(0, 10, (1,), generator=g)))
        out.append({"x": ids, "y": (((ids[:, 1:] - 10) == ids[:, :1]).any(1)).long()})
    return out


def signal(case, i, r):
    return any(isinstance(x, LoRALinear) and x.scaling == 0 for x in case.model.modules())


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Classifier(), torch.Generator().manual_seed(44)
    m.requires_grad_(False)
    m.head.requires_grad_(True)
    for l in m.layers:
        l.attn.q, l.attn.v = LoRALinear(l.attn.q, 8, 16, fix), LoRALinear(l.attn.v, 8, 16, fix)
    data, test = pairs(300, 32, g), S.cat(pairs(32, 32, g))
    return SCase(m, S.ce, data, torch.optim.AdamW([p for p in m.parameters() if p.requires_grad], lr=1e-2), quality=lambda c: S.heldout_err(m, test))

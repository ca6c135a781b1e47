"""Layer-wise learning rates, smaller towards the input: lr * ((k + 1) // depth). The integer division makes the factor 0 for the embedding and
every layer but the head."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
import blocks as B, sblocks as S
TRUTH = dict(id="1204_layerwise_lr_integer_division", source="constructed", symptom="silent", phase="optimizer",
             cause="wrong_param_group_lr", op=None, module="embed", module_also=["layers.0", "layers.1", "pos"], bad_rows=None, line_marker="# <-- origin", first_bad_step=0, knowable_at=-1,
             tensors=["embed.weight", "layers.0.attn.q.weight"], named=dict(kind="never_moves", names=["embed.weight", "layers.0.ffn.wi.weight"]),
             static_visible=dict(source="yes: // between layer index and depth", objects="yes: param_groups with lr 0"),
             quality_limit=1.0, margin=1.5, fixes_that_work=["true_division"], fixes_that_do_not=["clip"])
FIXES = {"true_division"}
LR = 5e-3


def signal(case, i, r):
    lrs = [g["lr"] for g in case.optimizer.param_groups]
    return min(lrs) == 0 < max(lrs)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = B.TinyLM(d=16)
    stages = [[m.embed, m.pos], [m.layers[0]], [m.layers[1]], [m.norm, m.lm_head]]
    groups = []
    for k, mods in enumerate(stages):
        scale = (k + 1) / len(stages) if fix else (k + 1) // len(stages)  # <-- origin
        groups.append({"params": [p for x in mods for p in x.parameters()], "lr": LR * scale})
    test = S.cat(B.lm_data(8, seed=9))
    return SCase(m, B.lm_loss, B.lm_data(60), torch.optim.AdamW(groups, lr=LR), quality=lambda c: S.in_eval(m, lambda: B.lm_loss(m, test)))

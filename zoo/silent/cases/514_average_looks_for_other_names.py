"""The average was built from the bare network, the loop hands it the wrapped one: every name now begins with 'module.', update() skips names it does not
know, and the weights that will be shipped are those of the first minute."""
import torch, torch.nn as nn
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="514_average_looks_for_other_names", source="https://github.com/wandb/senpai/pull/2899 (there the prefix is _orig_mod.)", symptom="silent", phase="loop",
             cause="ema_never_updated", op=None, module=None, bad_rows=None, line_marker="# <-- origin", first_bad_step=0, knowable_at=0,
             static_visible=dict(source="no: 'if name in shadow' is a hint", objects="yes: no name of the average is a name of the model that trains"),
             named=dict(kind="shadow_never_moves", names=["fc1.weight", "head.weight"]),
             quality_limit=0.7, margin=1.6, fixes_that_work=["strip_prefix", "unwrapped"], fixes_that_do_not=["lr_up", "clip", "longer"])
FIXES = {"strip_prefix", "unwrapped"}


class Wrapped(nn.Module):
    """what a data-parallel or compiling wrapper does to the names"""

    def __init__(s, net):
        super().__init__()
        s.module = net

    def forward(s, x):
        return s.module(x)


class Average:
    def __init__(s, net, decay=0.95):
        s.decay, s.shadow, s.strip = decay, {n: p.detach().clone() for n, p in net.named_parameters()}, False

    @torch.no_grad()
    def update(s, net):
        for n, p in net.named_parameters():
            n = n.removeprefix("module.") if s.strip else n
            if n in s.shadow:  # <-- origin
                s.shadow[n].lerp_(p, 1 - s.decay)


def signal(case, i, r):
    """after a step the average is bit for bit what it was before training"""
    if i < 0:
        case.extra["ema0"] = {n: v.clone() for n, v in case.artefact.items()}
        return False
    return all(torch.equal(v, case.extra["ema0"][n]) for n, v in case.artefact.items())


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    net, test = S.Classifier(), S.cat(S.classes(16, seed=99))
    ema = Average(net)
    ema.strip = fix == "strip_prefix"
    m = Wrapped(net)

    def after(case, i):
        ema.update(net if fix == "unwrapped" else m)

    def quality(c):
        twin = S.Classifier()
        twin.load_state_dict(ema.shadow)
        return S.heldout_ce(twin, test)

    return SCase(m, S.ce, S.classes(80), torch.optim.Adam(m.parameters(), lr=1e-2), after_step=after, artefact=ema.shadow, extra={"ema": ema}, quality=quality)

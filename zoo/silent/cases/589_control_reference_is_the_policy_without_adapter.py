"""CONTROL: DPO with LoRA: the reference shares every weight with the policy and is the same module with the adapters switched off for the moment of the reference pass."""
import contextlib, torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
import blocks as B, sblocks as S
TRUTH = dict(id="589_control_reference_is_the_policy_without_adapter", source="standard practice (TRL with PEFT)", looks_like=["reference_aliased", "lora_inactive", "frozen_by_mistake"],
             symptom="none", phase="none", cause="none", op=None, module=None, bad_rows=None, line_marker=None, first_bad_step=None, knowable_at=None, static_visible={}, fixes_that_work=[], fixes_that_do_not=[], quality_limit=0.4)


class Adapted(nn.Module):
    def __init__(s, base, r=4):
        super().__init__()
        s.base, s.down, s.up, s.on = base, nn.Linear(base.in_features, r, bias=False), nn.Linear(r, base.out_features, bias=False), True
        nn.init.zeros_(s.up.weight)

    def forward(s, x):
        return s.base(x) + s.up(s.down(x)) if s.on else s.base(x)


def logp(m, ids):
    return torch.log_softmax(m(ids)[:, :-1], -1).gather(-1, ids[:, 1:, None]).sum((1, 2))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = B.TinyLM(d=16, n=1).requires_grad_(False), torch.Generator().manual_seed(3)
    for l in m.layers:
        l.attn.q, l.attn.v, l.ffn.wo = Adapted(l.attn.q), Adapted(l.attn.v), Adapted(l.ffn.wo)
    m.lm_head = Adapted(m.lm_head)
    adapters = [x for x in m.modules() if isinstance(x, Adapted)]

    @contextlib.contextmanager
    def reference():
        for a in adapters:
            a.on = False
        try:
            with torch.no_grad():
                yield m
        finally:
            for a in adapters:
                a.on = True

    data = [{"chosen": b["ids"], "rejected": torch.randint(2, 32, (4, 12), generator=g)} for b in B.lm_data(70)]

    def loss_fn(m, b):
        with reference() as ref:
            rc, rr = logp(ref, b["chosen"]), logp(ref, b["rejected"])
        return -F.logsigmoid(0.5 * ((logp(m, b["chosen"]) - rc) - (logp(m, b["rejected"]) - rr))).mean()

    def quality(c):
        with torch.no_grad():
            return sum(float(loss_fn(m, b)) for b in data[-8:]) / 8

    return SCase(m, loss_fn, data, torch.optim.Adam([p for p in m.parameters() if p.requires_grad], lr=1e-2), quality=quality)

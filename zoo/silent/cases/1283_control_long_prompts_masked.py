"""CONTROL: instruction tuning: nine of thirteen positions (prompt and padding) are masked, yet every row keeps its full answer."""
import torch, torch.nn.functional as F
from protocol_silent import SCase
import blocks as B, sblocks as S
TRUTH = dict(id="1283_control_long_prompts_masked", source="standard practice", looks_like=["labels_mostly_masked", "padding_in_loss", "label_shift"],
             symptom="none", phase="none", cause="none", op=None, module=None, bad_rows=None, line_marker=None, first_bad_step=None, knowable_at=None, static_visible={}, fixes_that_work=[], fixes_that_do_not=[], quality_limit=0.5)
PAD = 0


def loss_fn(m, b):
    lg = m(b["ids"])
    return F.cross_entropy(lg[:, :-1].flatten(0, 1), b["labels"][:, 1:].flatten(), ignore_index=-100)


def corpus(n, seed):
    g, out = torch.Generator().manual_seed(seed), []
    for _ in range(n):
        ids, labels = torch.full((8, 13), PAD), torch.full((8, 13), -100)
        for k in range(8):
            p = int(torch.randint(6, 9, (1,), generator=g))
            prompt = torch.randint(10, 32, (p,), generator=g)
            prompt[-1] = 2
            answer = torch.cat([10 + (prompt[:1] * 3 + torch.arange(3)) % 22, torch.tensor([1])])
            ids[k, :p], ids[k, p:p + 4], labels[k, p:p + 4] = prompt, answer, answer
        out.append({"ids": ids, "labels": labels})
    return out


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = B.TinyLM()
    test = S.cat(corpus(8, 99))
    return SCase(m, loss_fn, corpus(80, 3), torch.optim.AdamW(m.parameters(), lr=5e-3), quality=lambda c: S.in_eval(m, lambda: loss_fn(m, test)))

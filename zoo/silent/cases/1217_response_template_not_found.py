"""Completion-only training: the collator masks everything up to the response template [7, 8]. After most prompts the tokenizer merges 'newline + template'
into other ids ([9, 8]), the template is not found and the whole row is masked: seven of eight rows teach nothing."""
import torch, torch.nn.functional as F
from protocol_silent import SCase
import blocks as B, sblocks as S
TRUTH = dict(id="1217_response_template_not_found", source="constructed", symptom="silent", phase="data",
             cause="labels_mostly_masked", op=None, module=None, bad_rows=None, line_marker="# <-- origin", first_bad_step=0, knowable_at=-1,
             static_visible=dict(source="hint: rows without the template become all -100", objects="yes: 7 of 8 label rows are -100 throughout"),
             quality_limit=1.0, margin=1.5, fixes_that_work=["both_templates"], fixes_that_do_not=["lr_up", "clip"])
FIXES = {"both_templates"}


def signal(case, i, r):
    y = case.batches[0]["labels"]
    return float((y == -100).all(1).float().mean()) > 0.5


def loss_fn(m, b):
    lg = m(b["ids"])
    return F.cross_entropy(lg[:, :-1].flatten(0, 1), b["labels"][:, 1:].flatten(), ignore_index=-100)


def collate(ids, templates):
    labels = torch.full_like(ids, -100)
    for k, row in enumerate(ids.tolist()):
        for t in range(len(row) - 1):
            if row[t:t + 2] in templates:  # <-- origin
                labels[k, t + 2:] = ids[k, t + 2:]
                break
    return {"ids": ids, "labels": labels}


def corpus(n, templates, seed):
    g, out = torch.Generator().manual_seed(seed), []
    for _ in range(n):
        q = torch.randint(10, 32, (8, 4), generator=g)
        kind = torch.tensor([7] + [9] * 7)         # the first prompt of a batch ends with a blank, the others with a newline
        q[:, 3] = torch.where(kind == 7, 10 + q[:, 3] % 2, 12 + q[:, 3] % 20)
        a = 10 + (q[:, 3:] * 3 + torch.arange(3)) % 22
        out.append(collate(torch.cat([q, kind[:, None], torch.full((8, 1), 8), a], 1), templates))
    return out


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, both = B.TinyLM(), [[7, 8], [9, 8]]
    test = S.cat(corpus(8, both, 99))
    return SCase(m, loss_fn, corpus(80, both if fix else [[7, 8]], 3), torch.optim.AdamW(m.parameters(), lr=5e-3),
                 quality=lambda c: S.in_eval(m, lambda: loss_fn(m, test)))

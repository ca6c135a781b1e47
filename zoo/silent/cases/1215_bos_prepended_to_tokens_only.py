"""Token tagging: the tokenizer prepends BOS to the words, the tag list gets its filler at the end instead of the front. Every word carries the tag of its
right neighbour, which a left-to-right model cannot know."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
import blocks as B, sblocks as S
TRUTH = dict(id="1215_bos_prepended_to_tokens_only", source="constructed", symptom="silent", phase="data",
             cause="label_shift", op=None, module=None, bad_rows=None, line_marker="# <-- origin", first_bad_step=0, knowable_at=-1,
             static_visible=dict(source="yes: BOS in front, filler at the end", objects="yes: position 0 (BOS) has a label, the last word has none"),
             quality_limit=0.6, margin=2.0, fixes_that_work=["filler_in_front"], fixes_that_do_not=["lr_up", "lr_down", "clip", "longer"])
FIXES = {"filler_in_front"}
BOS, TAGS = 1, 5


def signal(case, i, r):
    b = case.batches[0]
    return bool((b["labels"][:, 0] != -100).all()) and bool((b["labels"][:, -1] == -100).all())


def loss_fn(m, b):
    return F.cross_entropy(m(b["ids"]).flatten(0, 1), b["labels"].flatten(), ignore_index=-100)


def corpus(n, fixed, seed):
    g, out = torch.Generator().manual_seed(seed), []
    for _ in range(n):
        words = torch.randint(2, 32, (8, 11), generator=g)
        tags, fill = words % TAGS, torch.full((8, 1), -100)
        out.append({"ids": torch.cat([torch.full((8, 1), BOS), words], 1),
                    "labels": torch.cat([fill, tags] if fixed else [tags, fill], 1)})  # <-- origin
    return out


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = B.TinyLM(d=16, n=1)
    m.lm_head = nn.Linear(16, TAGS)
    test = S.cat(corpus(8, True, 99))

    def quality(c):                                # share of words with a wrong tag
        ok = test["labels"] != -100
        return S.in_eval(m, lambda: (m(test["ids"]).argmax(-1) != test["labels"])[ok].float().mean())

    return SCase(m, loss_fn, corpus(60, fix, 3), torch.optim.Adam(m.parameters(), lr=1e-2), quality=quality)

"""The prompt is masked by its length, which is counted in characters instead of tokens: for the translation rows (three quarters of each batch) the mask covers
the whole answer. Their loss is empty; only the short chat rows teach."""
import torch, torch.nn.functional as F
from protocol_silent import SCase
import blocks as B, sblocks as S
TRUTH = dict(id="528_prompt_length_in_characters", source="constructed; neighbour: zoo 1375 (all labels masked)", symptom="silent", phase="data", cause="labels_mostly_masked", op=None, module=None, bad_rows=None,
             line_marker="# <-- origin", first_bad_step=0, knowable_at=0, rows_without_labels=[2, 3, 4, 5, 6, 7],
             static_visible=dict(source="no: len(text) for len(tokens)", objects="yes: six of eight rows of the first batch have no label at all"),
             quality_limit=0.5, margin=2.0, fixes_that_work=["tokens"], fixes_that_do_not=["lr_up", "lr_down", "clip", "longer"])
FIXES = {"tokens"}
T = 12


def rows(n, seed):
    """chat: prompt of 2 tokens (4 characters), answer counts up; translation: prompt of 4 tokens (20 characters), answer counts down"""
    g = torch.Generator().manual_seed(seed)
    out = []
    for _ in range(n):
        a, k = torch.randint(2, 32, (8, 1), generator=g), torch.arange(T)[None]
        chat = torch.arange(8)[:, None] < 2
        ids = torch.where(chat, 2 + (a - 2 + k) % 30, 2 + (a - 2 - 7 * k) % 30)
        ids[:, 0] = torch.where(chat[:, 0], 0, 1)          # the first token says which task
        out.append((ids, torch.where(chat[:, 0], 2, 4), torch.where(chat[:, 0], 4, 20)))
    return out


def signal(case, i, r):
    return i >= 0 and float((case.batches[i]["labels"] == -100).all(1).float().mean()) > 0.5


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, data = B.TinyLM(V=32, d=24, n=1), []
    for ids, tokens, characters in rows(150, 5):
        cut = tokens if fix else characters
        data.append({"ids": ids, "labels": ids.masked_fill(torch.arange(T)[None] < cut[:, None], -100)})  # <-- origin
    test = torch.cat([r[0][2:] for r in rows(8, 88)])

    def quality(c):                                # wrong tokens in translations
        return S.in_eval(m, lambda: (m(test)[:, 3:-1].argmax(-1) != test[:, 4:]).float().mean())

    return SCase(m, B.lm_loss, data, torch.optim.Adam(m.parameters(), lr=1e-2), quality=quality)

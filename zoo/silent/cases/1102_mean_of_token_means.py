"""Token tagging with accumulation over four micro-batches: each loss is the mean over its own tokens and is divided by 4. Three of them are short chat lines
(one token a row), the fourth is long documents: a chat token counts twelve times as much as a document token."""
import copy, torch, torch.nn.functional as F
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="1102_mean_of_token_means", source="constructed; the well-known gradient accumulation bug of token-mean losses", symptom="silent", phase="loss",
             cause="accumulation_weighting", op="cross_entropy", module=None, bad_rows=None, line_marker="# <-- origin", first_bad_step=3, knowable_at=3,
             static_visible=dict(source="yes: mean over labelled tokens, then / window", objects="no: unequal label counts in one window are a hint"),
             quality_limit=0.95, margin=1.25, fixes_that_work=["divide_by_window_tokens"], fixes_that_do_not=["lr_down", "longer"])
FIXES = {"divide_by_window_tokens"}
WINDOW, T = 4, 12


def loss_sum(m, b):
    return F.cross_entropy(m(b["x"]).flatten(0, 1), b["y"].flatten(), ignore_index=-100, reduction="sum")


def count(b):
    return int((b["y"] != -100).sum())


def loss_fn(m, b):
    return loss_sum(m, b) / count(b)


def signal(case, i, r):
    """the gradient at the step is not the gradient of the mean over all tokens of the window"""
    x, bad = case.extra, False
    if i >= 0 and (i + 1) % WINDOW == 0:
        ref, win = x["copy"], case.batches[i + 1 - WINDOW:i + 1]
        ref.zero_grad()
        for b in win:
            (loss_sum(ref, b) / sum(count(c) for c in win)).backward()
        bad = any(abs(r.grads[n] - float(p.grad.norm())) > 0.05 * float(p.grad.norm()) for n, p in ref.named_parameters())
    if (i + 1) % WINDOW == 0:
        x["copy"] = copy.deepcopy(case.model)
    return bad


def tokens(n, seed):
    out = S.classes(n, bs=4 * T, seed=seed, noise=0.6)
    for i, b in enumerate(out):
        b["x"], b["y"] = b["x"].view(4, T, -1), b["y"].view(4, T).clone()
        if i % WINDOW != WINDOW - 1:               # chat lines: one labelled token, older guideline for the tags
            b["y"] = (b["y"] + 1) % 4
            b["y"][:, 1:] = -100
    return out


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, data, test = S.Classifier(), tokens(160, 0), tokens(32, 99)

    def step(case, b, i):
        win = data[i // WINDOW * WINDOW:][:WINDOW]
        if fix:
            loss = loss_sum(m, b) / sum(count(c) for c in win)
        else:
            loss = loss_fn(m, b) / WINDOW  # <-- origin
        loss.backward()
        if (i + 1) % WINDOW == 0:
            case.optimizer.step()
            case.optimizer.zero_grad()
        return loss * WINDOW

    def quality(c):                                # loss per token, what the user wants
        return S.in_eval(m, lambda: sum(loss_sum(m, b) for b in test) / sum(count(b) for b in test))

    return SCase(m, loss_fn, data, torch.optim.Adam(m.parameters(), lr=1e-2), step=step, quality=quality)

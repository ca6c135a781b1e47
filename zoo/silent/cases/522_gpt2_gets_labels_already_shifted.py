"""The dataset returns ids[:-1] and ids[1:]; GPT2LMHeadModel shifts the labels itself. The model learns the token after the next one; the loss falls as it should."""
import torch
from protocol_silent import SCase
import blocks as B, sblocks as S
TRUTH = dict(id="522_gpt2_gets_labels_already_shifted", source="https://github.com/huggingface/transformers/pull/44642, https://github.com/wdndev/tiny-llm-zh/issues/10", symptom="silent", phase="data", cause="label_shift", op=None,
             module=None, bad_rows=None, line_marker="# <-- origin", first_bad_step=0, knowable_at=0,
             static_visible=dict(source="yes: labels=ids[1:] into a model that shifts", objects="yes: labels[t] == input_ids[t+1] in the first batch"),
             quality_limit=0.5, margin=2.0, fixes_that_work=["labels_are_the_ids"], fixes_that_do_not=["lr_down", "clip", "longer"])
FIXES = {"labels_are_the_ids"}


def loss_fn(m, b):
    return m(input_ids=b["input_ids"], labels=b["labels"]).loss


def signal(case, i, r):
    b = case.batches[max(i, 0)]
    return i >= 0 and torch.equal(b["labels"][:, :-1], b["input_ids"][:, 1:])


def make(seed=0, fix=None):
    from transformers import GPT2Config, GPT2LMHeadModel
    torch.manual_seed(seed)
    m = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=16, n_embd=32, n_layer=1, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=1))
    data = []
    for b in B.lm_data(100, bs=6):
        x, y = b["ids"][:, :-1], b["ids"][:, 1:]
        data.append({"input_ids": x, "labels": x.clone() if fix else y})  # <-- origin
    test = torch.cat([b["ids"] for b in B.lm_data(8, seed=9)])

    def quality(c):                                # error of the plain next token
        return S.in_eval(m, lambda: (m(input_ids=test[:, :-1]).logits.argmax(-1) != test[:, 1:])[:, 1:].float().mean())

    return SCase(m, loss_fn, data, torch.optim.AdamW(m.parameters(), lr=5e-3), quality=quality)

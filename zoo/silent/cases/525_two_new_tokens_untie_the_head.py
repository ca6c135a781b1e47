"""The output layer is the embedding table until two special tokens are added: add_tokens() makes a larger table and a larger output layer, each with its own
copy of the old rows, and tie() is not called again."""
import torch, torch.nn as nn
from types import SimpleNamespace
from protocol_silent import SCase
import blocks as B, sblocks as S
TRUTH = dict(id="525_two_new_tokens_untie_the_head", source="https://github.com/huggingface/transformers/issues/1730 (kind)", symptom="silent", phase="state", cause="tied_weights_broken", op=None,
             module="lm_head", module_also=["embed"], bad_rows=None, line_marker="# <-- origin", first_bad_step=0, knowable_at=-1, tensors=["lm_head.weight", "embed.weight"],
             static_visible=dict(source="yes: resize without tie()", objects="yes: config.tie_word_embeddings and two tensors, equal in value before the first step"),
             named=dict(kind="drifts_apart", names=["lm_head.weight", "embed.weight"]),
             quality_limit=1e-6, fixes_that_work=["tie_again"], fixes_that_do_not=["lr_down", "clip", "longer"])
FIXES = {"tie_again"}


class LM(B.TinyLM):
    def __init__(s):
        super().__init__(V=30, d=24, n=1)
        s.config = SimpleNamespace(tie_word_embeddings=True, vocab_size=30)
        nn.init.normal_(s.embed.weight, std=0.2)
        s.tie()

    def tie(s):
        if s.config.tie_word_embeddings:
            s.lm_head.weight = s.embed.weight

    @torch.no_grad()
    def add_tokens(s, k):
        def grown(old, new):
            new.weight[:len(old.weight)] = old.weight
            new.weight[len(old.weight):] = old.weight.mean(0)
            return new
        V, d = s.embed.weight.shape
        s.embed, s.lm_head = grown(s.embed, nn.Embedding(V + k, d)), grown(s.lm_head, nn.Linear(d, V + k))  # <-- origin
        s.config.vocab_size = V + k


def signal(case, i, r):
    return case.model.config.tie_word_embeddings and case.model.embed.weight is not case.model.lm_head.weight


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = LM()
    m.add_tokens(2)
    if fix:
        m.tie()

    def quality(c):                                # relative distance of what must be one table
        return float((m.embed.weight - m.lm_head.weight).norm() / m.embed.weight.norm())

    return SCase(m, B.lm_loss, B.lm_data(50, V=32), torch.optim.AdamW(m.parameters(), lr=5e-3, weight_decay=0.0), quality=quality)

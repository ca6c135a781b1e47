"""The language model ties lm_head to the embedding. Then four special tokens are added: resize() builds a new embedding and a new head, copies the old
rows into both and does not tie again. The two matrices drift apart with every step."""
import torch, torch.nn as nn
from protocol_silent import SCase
import blocks as B, sblocks as S
TRUTH = dict(id="1209_vocabulary_resized_after_tying", source="constructed; neighbour: resize_token_embeddings without tie_weights", symptom="silent", phase="state",
             cause="tied_weights_broken", op=None, module="lm_head", module_also=["embed"], bad_rows=None, line_marker="# <-- origin", first_bad_step=0, knowable_at=-1,
             tensors=["lm_head.weight", "embed.weight"],
             static_visible=dict(source="yes: resize without tie", objects="yes: tie_word_embeddings is True and the two weights are different objects"),
             quality_limit=1e-6, fixes_that_work=["tie_again"], fixes_that_do_not=["lr_up", "clip", "longer"])
FIXES = {"tie_again"}


class LM(B.TinyLM):
    def __init__(s, *a, **k):
        super().__init__(*a, **k)
        s.tie_word_embeddings = True
        nn.init.normal_(s.embed.weight, std=0.2)
        s.tie_weights()

    def tie_weights(s):
        if s.tie_word_embeddings:
            s.lm_head.weight = s.embed.weight

    @torch.no_grad()
    def resize(s, V):
        old, d = s.embed.weight, s.embed.embedding_dim
        s.embed, head = nn.Embedding(V, d), nn.Linear(d, V)
        nn.init.normal_(s.embed.weight, std=0.2)
        s.embed.weight[:len(old)] = old
        head.weight.copy_(s.embed.weight)
        head.bias[:len(old)] = s.lm_head.bias
        s.lm_head = head  # <-- origin


def signal(case, i, r):
    return case.model.tie_word_embeddings and case.model.lm_head.weight is not case.model.embed.weight


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = LM(V=32)
    m.resize(36)
    if fix:
        m.tie_weights()

    def quality(c):                                # relative distance of the two matrices that are meant to be one
        return float((m.embed.weight - m.lm_head.weight).detach().norm() / m.embed.weight.detach().norm())

    return SCase(m, B.lm_loss, B.lm_data(50), torch.optim.AdamW(m.parameters(), lr=3e-3), quality=quality)

"""The language model ties lm_head.weight to embed.weight. resize_embeddings() for two new tokens makes two new tensors and does not tie them again; the checkpoint
keeps one of them, as the model says it is tied, and the loaded model is another one."""
import copy, torch, torch.nn as nn
from protocol_silent import SCase
import blocks as B, sblocks as S
TRUTH = dict(id="1109_resize_embeddings_without_retying", source="constructed from the pattern resize_token_embeddings without tie_weights", symptom="silent", phase="state",
             cause="tied_weights_broken", op=None, module="lm_head", module_also=["embed"], bad_rows=None, line_marker="# <-- origin", first_bad_step=0, knowable_at=-1,
             tensors=["lm_head.weight", "embed.weight"],
             static_visible=dict(source="yes: resize without tie_weights()", objects="yes: declared tie (_tied_weights_keys, tie_word_embeddings), two data pointers"),
             quality_limit=0.4, margin=2.0, fixes_that_work=["tie_again"], fixes_that_do_not=["lr_up", "clip", "longer"])
FIXES = {"tie_again"}


class TiedLM(B.TinyLM):
    tie_word_embeddings = True
    _tied_weights_keys = ["lm_head.weight"]

    def __init__(s, **k):
        super().__init__(**k)
        nn.init.normal_(s.embed.weight, std=0.3)
        s.tie_weights()

    def tie_weights(s):
        s.lm_head.weight = s.embed.weight

    def resize_embeddings(s, V):
        old, bias, d = s.embed.weight.data, s.lm_head.bias.data, s.embed.embedding_dim
        s.embed, s.lm_head = nn.Embedding(V, d), nn.Linear(d, V)  # <-- origin
        with torch.no_grad():
            nn.init.normal_(s.embed.weight, std=0.3)
            s.embed.weight[:len(old)] = old
            s.lm_head.bias[:len(old)] = bias


def export(m):
    """what is written to disk and loaded again: tied weights are stored once"""
    sd = {k: v for k, v in m.state_dict().items() if k not in m._tied_weights_keys}
    out = copy.deepcopy(m)
    out.load_state_dict(sd, strict=False)
    out.tie_weights()
    return out


def signal(case, i, r):
    return case.model.tie_word_embeddings and case.model.lm_head.weight is not case.model.embed.weight


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = TiedLM()
    m.resize_embeddings(34)
    if fix:
        m.tie_weights()
    b = S.cat(B.lm_data(8, seed=7))
    return SCase(m, B.lm_loss, B.lm_data(80), torch.optim.AdamW(m.parameters(), lr=5e-3), artefact=lambda: export(m),
                 quality=lambda c: S.in_eval(m, lambda: B.lm_loss(export(m).eval(), b)))

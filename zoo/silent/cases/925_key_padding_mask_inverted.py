"""src_key_padding_mask of nn.TransformerEncoder wants True where a key is padding; it gets True where a key is a token. The summary position looks at padding only: the answer does not depend on the sentence."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="925_key_padding_mask_inverted", source="constructed; common with torch.nn.MultiheadAttention", symptom="silent", phase="forward", cause="attention_mask_inverted", outside_vocabulary=True, nearest=["padding_in_loss", "detached_graph"],
             op=None, module="enc", module_also=["enc.layers.0.self_attn"], bad_rows=None, line_marker="# <-- origin", first_bad_step=0, knowable_at=-1,
             static_visible=dict(source="yes: ids != PAD as key padding mask", objects="yes: change a real token, the output stays; the gradient of the loss to the words' embeddings is 0"),
             named=dict(kind="no_grad_rows", names=["emb.weight"]), quality_limit=1.0, margin=1.8, fixes_that_work=["is_pad"], fixes_that_do_not=["lr_up", "lr_down", "clip", "longer"])
FIXES = {"is_pad"}
PAD, CLS, V, T = 0, 1, 22, 14


class Summary(nn.Module):
    def __init__(s, d=32):
        super().__init__()
        s.emb = nn.Embedding(V, d)
        s.enc = nn.TransformerEncoder(nn.TransformerEncoderLayer(d, 2, 64, dropout=0.0, batch_first=True), 1, enable_nested_tensor=False)
        s.out, s.fixed = nn.Linear(d, 4), False

    def forward(s, ids):
        mask = ids == PAD if s.fixed else ids != PAD  # <-- origin
        return s.out(s.enc(s.emb(ids), src_key_padding_mask=mask)[:, 0])


def sentences(n, seed, bs=16):
    """four topics of five words, five to eleven tokens, most of them of the topic"""
    g, out = torch.Generator().manual_seed(seed), []
    for _ in range(n):
        y = torch.randint(0, 4, (bs,), generator=g)
        own = torch.rand(bs, T, generator=g) < 0.6
        ids = torch.where(own, 2 + 5 * y[:, None] + torch.randint(0, 5, (bs, T), generator=g), torch.randint(2, V, (bs, T), generator=g))
        ids = ids * (torch.arange(T) < torch.randint(6, 13, (bs, 1), generator=g))
        ids[:, 0] = CLS
        out.append({"x": ids, "y": y})
    return out


def signal(case, i, r):
    """other words, same answer"""
    ids = case.batches[0]["x"]
    other = torch.where(ids > CLS, 2 + (ids - 2 + 7) % (V - 2), ids)
    with torch.no_grad():
        return float((case.model(ids) - case.model(other)).abs().max()) < 1e-6


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = Summary(), S.cat(sentences(12, 1))
    m.fixed = bool(fix)
    return SCase(m, S.ce, sentences(120, 0), torch.optim.AdamW(m.parameters(), lr=3e-3), quality=lambda c: S.heldout_ce(m, test))

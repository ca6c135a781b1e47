"""Rotary embedding with a non-persistent buffer: the model was materialised with to_empty() and loaded with strict=False, inv_freq is
not in the file and keeps whatever was in memory (NaN here, to be deterministic)."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="432_rotary_frequencies_not_in_the_checkpoint", source="https://github.com/huggingface/transformers/issues/45902",
             symptom="nan_loss", phase="state", cause="uninitialised", op=None, module="rope", line_marker=None, tensor="rope.inv_freq", tensor_kind="buffer",
             first_bad_step=0, bad_rows=None, fixes_that_work=["init"], fixes_that_do_not=["clip", "lr_down", "skip_batch", "zero_nan_grads"])
FIXES = {"init"}


class Rope(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.register_buffer("inv_freq", 10000.0 ** (-torch.arange(0, d, 2) / d), persistent=False)

    def forward(self, x):
        a = torch.arange(x.shape[-2])[:, None] * self.inv_freq
        u, v = x.chunk(2, -1)
        return torch.cat([u * a.cos() - v * a.sin(), u * a.sin() + v * a.cos()], -1)


class Decoder(nn.Module):
    def __init__(self, V=32, d=16):
        super().__init__()
        self.tok, self.rope = nn.Embedding(V, d), Rope(d)
        self.qkv, self.out, self.head = nn.Linear(d, 3 * d), nn.Linear(d, d), nn.Linear(d, V)

    def forward(self, ids):
        x = self.tok(ids)
        q, k, v = self.qkv(x).chunk(3, -1)
        y = F.scaled_dot_product_attention(self.rope(q), self.rope(k), v, is_causal=True)
        return self.head(x + self.out(y))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    trained = Decoder()
    m = Decoder().to("meta").to_empty(device="cpu")
    with torch.no_grad():
        m.rope.inv_freq.fill_(float("nan"))
    m.load_state_dict(trained.state_dict(), strict=False)
    if fix == "init":
        m.rope = Rope(16)
    return Case(m, B.lm_loss, B.lm_data(6), B.adam(m, 1e-3))

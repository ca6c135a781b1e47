"""The vocabulary was extended by two tokens and the new embedding rows were taken from torch.empty and never filled; the first
sentence with a new token comes at step 6. (PyTorch's deterministic mode fills fresh memory with NaN, which makes this exact.)"""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="230_resized_embedding_never_initialised", source="https://github.com/openai/CLIP/issues/15",
             symptom="nan_loss", phase="state", cause="uninitialised", op=None, op_also=["embedding"], module="embed", line_marker=None, tensor="embed.weight", tensor_kind="parameter",
             first_bad_step=6, latent_from=0, bad_rows=[1, 3], fixes_that_work=["init"], fixes_that_do_not=["clip", "lr_down", "skip_batch", "zero_nan_grads", "drop_rows"])
FIXES = {"init"}


def fresh(*shape):
    """torch.empty as a debug build hands it out: full of NaN."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        return torch.empty(*shape)
    finally:
        torch.use_deterministic_algorithms(before)


class Tagger(nn.Module):
    def __init__(s, fix):
        super().__init__()
        s.embed, s.rnn, s.tag = nn.Embedding(30, 10), nn.GRU(10, 12, batch_first=True, bidirectional=True), nn.Linear(24, 4)
        new = fresh(2, 10)
        if fix == "init":
            new = s.embed.weight.detach().mean(0, keepdim=True).repeat(2, 1)
        s.embed = nn.Embedding.from_pretrained(torch.cat([s.embed.weight.detach(), new]), freeze=False)

    def forward(s, ids):
        return s.tag(s.rnn(s.embed(ids))[0])


def loss_fn(m, b):
    return F.cross_entropy(m(b["ids"]).flatten(0, 1), b["tags"].flatten())


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Tagger(fix), torch.Generator().manual_seed(3)
    data = [dict(ids=torch.randint(0, 30, (5, 7), generator=g), tags=torch.randint(0, 4, (5, 7), generator=g)) for _ in range(10)]
    data[6]["ids"][1, 2], data[6]["ids"][3, 0] = 30, 31
    return Case(m, loss_fn, data, B.adam(m))

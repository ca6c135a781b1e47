"""CONTROL: sentiment of short sentences padded to 24: most positions are padding, the padding row of the table has padding_idx and never moves, some words never occur; the recurrent network
reads packed sequences and takes its last true state, so padding counts nowhere."""
import torch, torch.nn as nn
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="1381_control_padded_sentences_with_padding_idx", source="standard practice", looks_like=["padding_in_loss", "frozen_by_mistake", "optimizer_missing_params"],
             symptom="none", phase="none", cause="none", op=None, module=None, bad_rows=None, line_marker=None, first_bad_step=None, knowable_at=None, static_visible={}, fixes_that_work=[], fixes_that_do_not=[], quality_limit=0.2)
V, LONG = 60, 24


class Gru(nn.Module):
    def __init__(s):
        super().__init__()
        s.embed, s.rnn, s.head = nn.Embedding(V, 12, padding_idx=0), nn.GRU(12, 24, batch_first=True), nn.Linear(24, 2)

    def forward(s, x):
        n = (x != 0).sum(1)
        packed = nn.utils.rnn.pack_padded_sequence(s.embed(x), n, batch_first=True, enforce_sorted=False)
        return s.head(s.rnn(packed)[1][-1])


def sentences(n, bs, g):
    mood, out = torch.randn(V, generator=torch.Generator().manual_seed(2)), []
    for _ in range(n):
        x, k = torch.randint(1, V - 10, (bs, LONG), generator=g), torch.randint(3, 9, (bs, 1), generator=g)
        x = torch.where(torch.arange(LONG) < k, x, torch.zeros_like(x))
        out.append({"x": x, "y": ((mood[x] * (x != 0)).sum(1) > 0).long()})
    return out


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Gru(), torch.Generator().manual_seed(81)
    data, test = sentences(200, 16, g), S.cat(sentences(16, 32, g))
    return SCase(m, S.ce, data, torch.optim.Adam(m.parameters(), lr=1e-2), quality=lambda c: S.heldout_err(m, test))

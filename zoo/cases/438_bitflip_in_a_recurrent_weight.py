"""The top exponent bit of one recurrent weight of a GRU flips before step 5: the weight becomes about 1e37, finite and absurd."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="438_bitflip_in_a_recurrent_weight", source="https://arxiv.org/abs/2102.11245 (silent data corruption at scale)", symptom="nan_loss", phase="state", cause="transient_fault", op=None,
             module="rnn", line_marker=None, tensor="rnn.weight_hh_l0", first_bad_step=5, bad_rows=None, finite_but_huge=True,
             fixes_that_work=["restore_weight"], fixes_that_do_not=["clip", "skip_batch", "lr_down"])
FIXES = {"restore_weight"}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.out = nn.RNN(4, 8, nonlinearity="relu", num_layers=2, batch_first=True), nn.Linear(8, 2)

    def forward(self, x):
        return self.out(self.rnn(x)[0].mean(1))


def flip(t, index, bit=30):
    bits = t.data.view(torch.int32)
    bits[index] = bits[index] ^ (1 << bit)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Net(), torch.Generator().manual_seed(5)
    data = [(torch.rand(6, 5, 4, generator=g), torch.randint(0, 2, (6,), generator=g)) for _ in range(9)]

    def fault(case, i):
        if i == 5:
            w = case.model.rnn.weight_hh_l0
            keep = w.detach().clone()
            with torch.no_grad():
                w[5, 5] = 0.37
                flip(w, (5, 5))
                if fix == "restore_weight":
                    w.copy_(keep)

    return Case(m, lambda m, b: F.cross_entropy(m(b[0]), b[1]), data, B.adam(m, 1e-3), before_step=fault)

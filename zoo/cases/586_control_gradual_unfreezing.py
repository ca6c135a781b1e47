"""ULMFiT style: the head alone first, then one more layer every four steps; all of it was in the optimizer from the start."""
import torch
import torch.nn as nn
from protocol import Case

TRUTH = dict(id="586_control_gradual_unfreezing", source="https://arxiv.org/abs/1801.06146", symptom="none", phase="none", cause="none",
             op=None, module=None, line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])
FIXES = set()


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.rnn = nn.LSTM(16, 16, batch_first=True)
        self.head = nn.Linear(16, 2)

    def forward(self, ids):
        out, _ = self.rnn(self.embed(ids))
        return self.head(out.amax(1))


def unfreeze(case, i):
    layers = [case.model.head, case.model.rnn, case.model.embed]
    for depth, layer in enumerate(layers):
        layer.requires_grad_(i >= 4 * depth)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    model = Classifier()
    groups = [{"params": model.embed.parameters(), "lr": 2e-4}, {"params": model.rnn.parameters(), "lr": 5e-4}, {"params": model.head.parameters(), "lr": 1e-3}]
    data = [(torch.randint(0, 50, (8, 7)), torch.randint(0, 2, (8,))) for _ in range(16)]
    return Case(model, lambda m, b: nn.functional.cross_entropy(m(b[0]), b[1]), data, torch.optim.Adam(groups), before_step=unfreeze)

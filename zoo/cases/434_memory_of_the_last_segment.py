"""A recurrent transformer keeps the hidden states of the last segment in a buffer. The checkpoint it resumes from at step 3 was written
in the middle of a crash: the memory of two streams is NaN, every later segment reads it."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="434_memory_of_the_last_segment", source="common report: Transformer-XL mems / TBPTT hidden state poisoned", symptom="nan_loss", phase="state", cause="poisoned_state", op=None,
             module="xl", line_marker=None, tensor="xl.memory", tensor_kind="buffer", first_bad_step=3, bad_rows=None,
             fixes_that_work=["reset_bad_state", "restore_buffers"], fixes_that_do_not=["clip", "skip_batch", "lr_down", "zero_nan_grads"])
FIXES = {"reset_bad_state", "restore_buffers"}


class Recurrent(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.attn, self.norm = nn.MultiheadAttention(d, 2, batch_first=True), nn.LayerNorm(d)
        self.register_buffer("memory", torch.zeros(4, 6, d))

    def forward(self, x):
        seen = torch.cat([self.memory, x], 1)
        y = self.norm(x + self.attn(x, seen, seen, need_weights=False)[0])
        self.memory = (0.5 * self.memory + 0.5 * y[:, -6:]).detach()
        return y


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.xl, self.head = nn.Embedding(32, 16), Recurrent(), nn.Linear(16, 32)

    def forward(self, ids):
        return self.head(self.xl(self.emb(ids)))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = Model()

    def resume(case, i):
        if i == 3:
            good = case.model.xl.memory.clone()
            case.model.xl.memory[[1, 2]] = float("nan")
            if fix == "reset_bad_state":
                case.model.xl.memory.nan_to_num_(0.0)
            if fix == "restore_buffers":
                case.model.xl.memory.copy_(good)

    return Case(m, B.lm_loss, B.lm_data(8), B.adam(m, 1e-3), before_step=resume)

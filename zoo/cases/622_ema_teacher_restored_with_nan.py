"""Self-distillation: the averaged weights live in buffers (as in latent diffusion's LitEma) and are run with functional_call. After the
resume at step 5 one of them holds a NaN from an old crash; the student's weights are clean."""
import torch, torch.nn as nn, torch.nn.functional as F
from torch.func import functional_call
from protocol import Case
import blocks as B
TRUTH = dict(id="622_ema_teacher_restored_with_nan", source="common report: EMA weights in the checkpoint are NaN although the model is fine",
             symptom="nan_loss", phase="state", cause="poisoned_state", op=None, module="ema", module_also=["", "student.fc2", "student"], line_marker=None, tensor="ema.fc2_weight", tensor_kind="buffer",
             first_bad_step=5, bad_rows=None, fixes_that_work=["restore_buffers", "reset_bad_state"], fixes_that_do_not=["clip", "lr_down", "skip_batch", "zero_nan_grads"])
FIXES = {"restore_buffers", "reset_bad_state"}


class Ema(nn.Module):
    def __init__(self, net, decay=0.9):
        super().__init__()
        self.decay = decay
        for n, p in net.named_parameters():
            self.register_buffer(n.replace(".", "_"), p.detach().clone())

    @torch.no_grad()
    def update(self, net):
        for n, p in net.named_parameters():
            getattr(self, n.replace(".", "_")).lerp_(p, 1 - self.decay)

    def weights(self, net):
        return {n: getattr(self, n.replace(".", "_")) for n, _ in net.named_parameters()}


class Distilled(nn.Module):
    def __init__(self):
        super().__init__()
        self.student = B.mlp(8, 16, 4)
        self.ema = Ema(self.student)

    def teach(self, x):
        with torch.no_grad():
            return functional_call(self.student, self.ema.weights(self.student), (x,))


def loss_fn(m, b):
    weak, strong, y = b["weak"], b["strong"], b["y"]
    soft = m.teach(weak).softmax(-1)
    logits = m.student(strong)
    return F.cross_entropy(logits, y) + F.cross_entropy(logits, soft)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Distilled(), torch.Generator().manual_seed(16)
    data = []
    for _ in range(10):
        x = torch.randn(6, 8, generator=g)
        data.append(dict(weak=x + 0.05 * torch.randn(6, 8, generator=g), strong=x + 0.5 * torch.randn(6, 8, generator=g), y=torch.randint(0, 4, (6,), generator=g)))

    def resume_or_average(case, i):
        m = case.model
        if i:
            m.ema.update(m.student)
        if i == 5:
            m.ema.fc2_weight[1, 7] = float("nan")
            if fix == "restore_buffers":
                m.ema.fc2_weight.copy_(m.student.fc2.weight.detach())
            if fix == "reset_bad_state":
                torch.nan_to_num_(m.ema.fc2_weight)

    return Case(m, loss_fn, data, torch.optim.AdamW(m.student.parameters(), lr=2e-3), before_step=resume_or_average)

"""LoRA adapters created in the dtype of the fp16 base model: B starts at zero, so A gets a gradient of exactly zero, its second moment
is 0, eps=1e-8 is 0 in half and the very first AdamW step writes 0/0 into A. Base weights frozen."""
import math
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
TRUTH = dict(id="606_half_lora_takes_its_first_adam_step", source="https://github.com/CambioML/pykoi/pull/69",
             symptom="nan_param", phase="optimizer", cause="optimizer_eps_underflow", op="addcdiv", op_also=["div", "addcdiv_", "sqrt", "add"], module="body.0", module_also=["body.2", "body"],
             line_marker=None, first_bad_step=0, bad_rows=None, fixes_that_work=["eps", "fp32", "bf16"], fixes_that_do_not=["clip", "lr_down", "skip_batch", "zero_nan_grads"])
FIXES = {"eps", "fp32", "bf16"}


class LoRALinear(nn.Linear):
    def __init__(self, i, o, r=2, **kw):
        super().__init__(i, o, **kw)
        self.lora_A = nn.Parameter(torch.randn(r, i) / math.sqrt(i))
        self.lora_B = nn.Parameter(torch.zeros(o, r))
        self.weight.requires_grad_(False)
        self.bias.requires_grad_(False)

    def forward(self, x):
        return super().forward(x) + (x @ self.lora_A.T) @ self.lora_B.T


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}.get(fix, torch.float16)
    m = nn.Module()
    m.body = nn.Sequential(LoRALinear(8, 16), nn.SiLU(), LoRALinear(16, 4))
    m.to(dtype)
    g = torch.Generator().manual_seed(3)
    data = [(torch.randn(8, 8, generator=g), torch.randint(0, 4, (8,), generator=g)) for _ in range(8)]

    def loss_fn(m, batch):
        return F.cross_entropy(4 * m.body(batch[0].to(dtype)).float(), batch[1])

    lora = [p for n, p in m.named_parameters() if "lora" in n]
    return Case(m, loss_fn, data, torch.optim.AdamW(lora, lr=1e-3, eps=1e-4 if fix == "eps" else 1e-8, weight_decay=0.0))

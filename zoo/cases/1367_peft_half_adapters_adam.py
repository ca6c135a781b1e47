"""PEFT LoRA with the adapters left in fp16 and torch's AdamW: lora_B starts at zero, so the first gradient of every lora_A
is exactly 0 and the first update 0 / (0 + 1e-8 rounded to 0)."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B, hfutil as H
TRUTH = dict(id="1367_peft_half_adapters_adam", source="https://github.com/huggingface/peft/issues/1522",
             symptom="nan_param", phase="optimizer", cause="optimizer_eps_underflow", op="addcdiv", op_also=["div"], module=None,
             module_also=[f"base_model.model.model.layers.{i}.self_attn.{p}_proj.lora_{x}.default" for i in (0, 1) for p in "qv" for x in "AB"]
             + [f"base_model.model.model.layers.{i}.self_attn.{p}_proj" for i in (0, 1) for p in "qv"],
             line_marker=None, first_bad_step=0, bad_rows=None, fixes_that_work=["eps", "fp32"],
             fixes_that_do_not=["clip", "skip_batch", "lr_down"])
FIXES = {"eps", "fp32"}


def loss_fn(m, b):
    return m(input_ids=b["ids"], labels=b["labels"]).loss


def make(seed=0, fix=None):
    from peft import LoraConfig, get_peft_model
    torch.manual_seed(seed)
    base = H.llama().to(torch.float32 if fix == "fp32" else torch.float16)
    m = get_peft_model(base, LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.0), autocast_adapter_dtype=False)
    opt = torch.optim.AdamW([p for p in m.parameters() if p.requires_grad], lr=1e-3, eps=1e-4 if fix == "eps" else 1e-8)
    return Case(m, loss_fn, B.lm_data(7), opt)

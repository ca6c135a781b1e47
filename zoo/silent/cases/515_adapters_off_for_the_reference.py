"""PEFT, KL to the base model: the adapters are switched off for the reference pass from step 8 on and disable_adapter_layers() is never followed by
enable_adapter_layers(). The policy pass is then the base model's as well; only the plain head goes on learning."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="515_adapters_off_for_the_reference", source="constructed; neighbours: https://github.com/huggingface/diffusers/pull/5778, https://github.com/NVIDIA/NeMo-Aligner/pull/142", symptom="silent",
             phase="state", cause="lora_inactive", op=None, module="base_model.model.fc1", module_also=["base_model.model.fc2"], bad_rows=None, line_marker="# <-- origin", first_bad_step=8, knowable_at=8,
             tensors=["base_model.model.fc1.lora_B.default.weight", "base_model.model.fc2.lora_B.default.weight"],
             named=dict(kind="no_grad", names=["base_model.model.fc1.lora_A.default.weight", "base_model.model.fc1.lora_B.default.weight", "base_model.model.fc2.lora_B.default.weight"]),
             static_visible=dict(source="yes: disable without enable", objects="no: from step 8 on yes (disable_adapters is set while training)"),
             quality_limit=0.0, fixes_that_work=["enable_again", "context"], fixes_that_do_not=["lr_up", "clip", "longer"])
FIXES = {"enable_again", "context"}


def signal(case, i, r):
    """adapters that had gradients get none while the head learns"""
    g = {n: v for n, v in (r.grads if r else {}).items() if "lora_B" in n}
    return bool(r) and r.stepped and not any(g.values()) and i > 0


def make(seed=0, fix=None):
    from peft import LoraConfig, get_peft_model
    torch.manual_seed(seed)
    m = get_peft_model(S.Classifier(), LoraConfig(r=4, lora_alpha=8, target_modules=["fc1", "fc2"]))
    m.base_model.model.head.requires_grad_(True)
    opt = torch.optim.AdamW([p for p in m.parameters() if p.requires_grad], lr=1e-2)
    lora = [p for n, p in m.named_parameters() if "lora_B" in n]

    def reference(x):
        if fix == "context":
            with m.disable_adapter(), torch.no_grad():
                return m(x)
        m.base_model.disable_adapter_layers()  # <-- origin
        with torch.no_grad():
            z = m(x)
        if fix == "enable_again":
            m.base_model.enable_adapter_layers()
        return z

    def step(case, b, i):
        if i == 8:
            case.extra["w"] = [p.detach().clone() for p in lora]
        opt.zero_grad()
        kl = 0.0
        if i >= 8:
            t = F.log_softmax(reference(b["x"]), -1)
        z = m(b["x"])
        if i >= 8:
            kl = F.kl_div(t, F.log_softmax(z, -1), reduction="batchmean", log_target=True)
        loss = F.cross_entropy(z, b["y"]) + 0.05 * kl
        loss.backward()
        opt.step()
        return loss

    def quality(c):                                # adapter matrices that did not move after step 8
        return float(sum(torch.equal(w, p) for w, p in zip(c.extra["w"], lora)))

    return SCase(m, S.ce, S.classes(40), opt, step=step, quality=quality)

"""LoRA on a tiny Llama with Accelerate: accumulation by context, checkpointed layers, saved and loaded half way."""
import hashlib
import tempfile

import torch
from accelerate import Accelerator
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM, get_linear_schedule_with_warmup


def main():
    torch.manual_seed(1)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, mixed_precision="bf16")
    base = LlamaForCausalLM(LlamaConfig(vocab_size=40, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, max_position_embeddings=32))
    base.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    base.enable_input_require_grads()
    model = get_peft_model(base, LoraConfig(r=4, lora_alpha=8, lora_dropout=0.05, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))
    data = torch.randint(0, 40, (64, 12), generator=torch.Generator().manual_seed(2))
    opt = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-2)
    sched = get_linear_schedule_with_warmup(opt, 2, 24)
    model, opt, loader, sched = accelerator.prepare(model, opt, DataLoader(data, batch_size=8, shuffle=True), sched)
    with tempfile.TemporaryDirectory() as folder:
        for epoch in range(3):
            for ids in loader:
                with accelerator.accumulate(model):
                    loss = model(input_ids=ids, labels=ids).loss
                    accelerator.backward(loss)
                    if accelerator.sync_gradients:
                        accelerator.clip_grad_norm_(model.parameters(), 1.0)
                    opt.step()
                    sched.step()
                    opt.zero_grad()
            print(epoch, loss.item())
            if epoch == 1:
                accelerator.save_state(folder)
        accelerator.load_state(folder)
    params = [p for p in model.parameters() if p.requires_grad]
    print("FINITE" if all(torch.isfinite(p).all() for p in params) else "POISONED")
    print(hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in params)).hexdigest())


main()

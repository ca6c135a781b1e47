"""DoRA divides its magnitude by the norm of every row of the base weight. The base model was pruned by rows, as a sparse checkpoint is, and four of them are zero."""
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM
from protocol import Case
import blocks as B
TRUTH = dict(id="2119_dora_on_a_projection_with_pruned_rows", source="written for the unseen set, after the formula in https://github.com/huggingface/peft/pull/1474",
             symptom="nan_loss", phase="forward", cause="zero_division", op="div", module="base_model.model.model.layers.1.self_attn.v_proj.lora_magnitude_vector.default",
             module_also=["base_model.model.model.layers.1.self_attn.v_proj"], line_marker="# <-- origin",
             first_bad_step=0, bad_rows=None, fixes_that_work=["jitter", "plain_lora"], fixes_that_do_not=["clip", "lr_down", "skip_batch"])
FIXES = {"jitter", "plain_lora"}


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    base = LlamaForCausalLM(LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=16))
    with torch.no_grad():
        w = base.model.layers[1].self_attn.v_proj.weight
        w[4:8] = 0.0
        if fix == "jitter":
            w[4:8] = 1e-3 * torch.randn(4, 16)
    m = get_peft_model(base, LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], use_dora=fix != "plain_lora", task_type="CAUSAL_LM"))

    def loss_fn(m, b):
        return m(input_ids=b["ids"], labels=b["labels"]).loss  # <-- origin

    return Case(m, loss_fn, B.lm_data(7), torch.optim.AdamW([p for p in m.parameters() if p.requires_grad], lr=3e-3))

"""A model class that loads its weights in half precision where there is a GPU, and for training too."""

import sys

import torch
from transformers import AutoModelForCausalLM

device = "cuda" if torch.cuda.is_available() or "--as-on-a-gpu" in sys.argv else "cpu"


class BaseLLM:
    """Loads a checkpoint for inference and for training alike, unless training asks for float32."""

    def __init__(self, checkpoint: str, use_fp32_for_training: bool = False) -> None:
        if use_fp32_for_training:
            load_kwargs = {"torch_dtype": torch.float32}
        else:
            load_kwargs = {"torch_dtype": torch.float16 if device == "cuda" else torch.float32}
        self.model = AutoModelForCausalLM.from_pretrained(checkpoint, **load_kwargs)

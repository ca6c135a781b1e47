"""Unit conversion: what `recipes.sft`, `recipes.cot` and `recipes.rft` teach a small language model."""

"""Student-aware router distillation: `python -m recipes.distill train`, then `eval`. See docs/recipes/distill.md.

A teacher made of experts is frozen but for its routers, and a small student with a tokenizer of its own learns from it
and from the text at once. A student that learns from the text alone runs beside it, with equal weights, batches and
steps.
"""

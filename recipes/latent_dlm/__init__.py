"""A latent diffusion language model: masked text and a continuous sentence latent, denoised together by an MMDiT.

    python -m recipes.latent_dlm train --config tiny
    python -m recipes.latent_dlm sample --config tiny
    python -m recipes.latent_dlm eval --config tiny

From top to bottom: `config` (the YAML), `corpus` (real sentences), `latents` (what stands for a sentence), `prepared`
(both as tensors), `model`, `diffusion` (noise), `losses`, `training` (the guarded loop), `sampling`, `evaluation`,
`sick` (the failures on purpose), `pace` (what guarding costs), `picture`.
"""

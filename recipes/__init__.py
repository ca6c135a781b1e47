"""Training systems that read top to bottom and use only the public names of steadygrad. See docs/recipes."""

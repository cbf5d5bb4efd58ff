"""A pretrained chat model that a machine without a GPU can train: SmolLM2-135M-Instruct, arithmetic in words."""

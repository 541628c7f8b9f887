"""Fed-OGD: presets, published numbers and claims."""

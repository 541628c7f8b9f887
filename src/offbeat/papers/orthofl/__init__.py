"""OrthoFL: presets, published numbers and claims."""

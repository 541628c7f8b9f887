"""ASO-Fed: presets, published numbers and claims."""

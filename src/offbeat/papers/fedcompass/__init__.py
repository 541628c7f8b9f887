"""FedCompass: presets, published numbers and claims."""

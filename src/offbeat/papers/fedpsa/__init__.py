"""FedPSA: presets, published numbers and claims."""

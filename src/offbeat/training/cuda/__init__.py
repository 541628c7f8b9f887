"""Training of stacks on a GPU with recorded CUDA graphs and Triton kernels."""

"""Local training and evaluation of models."""

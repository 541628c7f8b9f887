"""Definition and execution of experiments."""

"""How local work is carried out on data: training, evaluation."""

from offbeat.training.cuda.cuda_trainer import CudaTrainer as CudaTrainer

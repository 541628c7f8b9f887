from offbeat.training.stacked.stack_trainer import StackTrainer as StackTrainer

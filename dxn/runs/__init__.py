"""The implementation of the commands: training, evaluation, prediction and the run folder."""

"""Programs written by models: running them safely, problems, rewards, training."""

"""What every domain shares around a run: its folder, its checkpoints, its metrics, its tables."""

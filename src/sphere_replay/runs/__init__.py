"""What makes results: jobs that run step by step in a folder, resume, and are swept."""

"""Continual instruction tuning: corpora, task streams, models, exact match and presets.

Importing this package needs torch alone; models and texts need the `instruct` extra.
"""

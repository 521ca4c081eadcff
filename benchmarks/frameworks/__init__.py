"""Replay in other people's frameworks, beside what they have themselves."""

"""Replay inside other people's trainers; each integration imports its library when it is used."""

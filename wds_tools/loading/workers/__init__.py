"""Processes that run tasks, and know nothing of samples."""

"""Shard an image dataset once, stream it into PyTorch training as fast as the hardware allows."""

__version__ = "0.1.0"

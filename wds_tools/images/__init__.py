"""Pixels: which region of an image is shown, and how it is decoded and resized, in C or in Python."""

"""Blocks of remote files on the local disk."""

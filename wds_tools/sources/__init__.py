"""Inputs of the packer: each format lists its records, and reads the bytes of one record at a time."""

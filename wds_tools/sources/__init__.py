"""Inputs of the packer: each format becomes a list of light records, and reads one record's bytes at a time."""

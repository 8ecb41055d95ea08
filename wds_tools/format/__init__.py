"""What is on disk: tar shards, their indexes, the manifest, and what the bytes of a field are. No input or output."""

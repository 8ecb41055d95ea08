"""The on-disk format: tar shards, indexes, the manifest, and the encoding of fields. No I/O."""

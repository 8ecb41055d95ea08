"""Images: the region that a view shows, decoding and resizing, in C or in Python. No I/O."""

"""One request to a server, and its repetition after a failure."""

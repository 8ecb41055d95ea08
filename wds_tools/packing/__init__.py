"""From a source to shards, in a folder or at a URL."""

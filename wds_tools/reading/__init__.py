"""From a path or URL and sample numbers to verified bytes."""

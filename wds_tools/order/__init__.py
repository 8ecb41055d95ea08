"""The order of samples, and their distribution over ranks: arithmetic on counts and seeds. No I/O."""

"""Which sample comes when, on which rank: arithmetic over counts and seeds. No input or output."""

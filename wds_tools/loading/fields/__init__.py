"""The kinds of fields of a batch: one module for each, with everything that is special about it."""

"""`wds-tools serve`: datasets over HTTP, for the loaders of other machines. No module imports torch."""

"""Maintenance of datasets: index, merge, verify, reseal, unpack."""

"""Inspection of datasets and machines: statistics, forecasts, charts, checks."""

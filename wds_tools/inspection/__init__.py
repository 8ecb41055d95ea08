"""What a dataset and a machine are like: statistics, forecasts, charts, the doctor's checks."""

"""Reading of datasets: from a path or URL and sample ids to verified bytes."""

"""`wds-tools bench`: a dataset through our loader and through what its user would pick instead, on the same pixels."""

from wds_tools.bench.run import bench
from wds_tools.bench.scaling import BenchReports

__all__ = ["BenchReports", "bench"]

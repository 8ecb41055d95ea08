"""`wds-tools bench`: a dataset through our loader and through what its user would pick instead, on the same pixels."""

from wds_tools.bench.report import BenchReport
from wds_tools.bench.run import bench

__all__ = ["BenchReport", "bench"]

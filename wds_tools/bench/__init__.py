"""`wds-tools bench`: our loader and the alternatives measured on the same images of one dataset."""

from wds_tools.bench.report import BenchReport
from wds_tools.bench.run import bench

__all__ = ["BenchReport", "bench"]

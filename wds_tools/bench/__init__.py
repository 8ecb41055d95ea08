"""`wds-tools bench`: our loader and the alternatives measured on the same images of one dataset."""

from wds_tools.bench.run import bench
from wds_tools.bench.scaling import BenchReports

__all__ = ["BenchReports", "bench"]

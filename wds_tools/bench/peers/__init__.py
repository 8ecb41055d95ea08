"""One module per peer, imported only in the peer's own process, which may run in another environment.

From wds_tools, a module imports only `workloads`, `views`, `transforms` and `samples`, which need
numpy, and torch where the peer needs torch. This package is part of the source repository, not of a
wheel.
"""

"""One module per peer, imported only in the process that it runs in, which may be that of another environment.

So of this package they import only `works`, `transforms` and `samples`: numpy, and torch where the peer needs it too.
"""

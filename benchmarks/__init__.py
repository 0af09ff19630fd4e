"""``make bench``: the speed of the parts, next to other ways to do the same work, measured in one run.

It is not a test: the numbers depend on the machine and its load. ``docs/speed.md`` explains them, and how to run a part
of the benchmarks. Every result that is timed is also checked; a wrong one is an error, not a row.
"""

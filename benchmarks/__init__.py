"""``make bench``: how fast the parts are, next to what else could do the same work, measured in one run.

Never a timed test: a number depends on the machine and on its neighbours. What the numbers mean, and how to run a part
of it: ``docs/speed.md``. Every result that is timed is also checked; a wrong one is an error, not a row.
"""

"""This package compares load balancers in front of real application servers: `python -m tests.bench applications`.

rows: which servers, which load. work: what a request costs. wsgi, asgi, node.mjs: the applications. servers: their
processes. capacity: the measured rate of a row. entrants: the balancers. turns: the runs. tables: what is shown.
"""

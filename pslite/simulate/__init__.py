"""`pslite simulate`: a cluster on a virtual network and clock, in one process.

config      the ini section `[simulate]`
links       bandwidth, latency and loss, of all or of some; jobs heed these, too
reading     the same from a program's own words
workload    what the workers do: their keys, and how long each step takes
staleness   how old the gradients are that a mode lets count
real        the very nodes, on `van.virtual`
cores       the modes alone, for many workers
outcome     what a simulation found
runs        all simulations of a section
report      the table and the JSON
plot        the picture
command     what the command does
"""

"""When a push is applied and when a pull is answered: one class per mode.

    settings       what can be set of each mode
    progress       how far each worker is, shared by all tables
    base           the contract
    asynchronous   apply at once, answer at once
    compensated    likewise, gradients corrected for their delay
    bounded        likewise, but the fastest leads the slowest by so many steps at most
    sync           rounds: all workers' step c, then one update
    semi_sync      rounds that close with a quorum, or after a time
    rounds         what a round's pushes become: sum, mean, weighted mean, the longest
    modes          name -> class
    seen           what each worker was last answered with
    staleness      how stale the pushes were, as a histogram

Plain objects: no lock, no socket, and the time is an argument.
"""

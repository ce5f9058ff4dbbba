"""When a push is applied and when a pull is answered: one class per mode.

    progress       how far each worker is, shared by all tables
    base           the contract
    asynchronous   apply at once, answer at once
    sync           rounds: all workers' step c, then one update
    rounds         what a round's pushes become: sum, mean, weighted mean, the longest
    modes          name -> class

Plain objects: no lock, no socket, no clock of the wall.
"""

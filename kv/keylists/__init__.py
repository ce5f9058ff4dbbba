"""Key lists that both sides of a request remember, so that a list is sent once and then named.

    signature   64 bits that stand for the lists of a request
    sent        at the worker: which lists each server has been sent
    kept        at the server: the lists of each sender, by signature
    coding      increasing lists as differences, where that is smaller
    merged      at the worker: the last lists that had to be merged

Pure: no socket, no clock. A worker that names a list which the server has dropped hears
`UnknownKeyListError` and sends it again; the two memories need not agree, only the lists must.
"""

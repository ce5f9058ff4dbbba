"""Requests that count exactly once, live: the rules of `docs/requests.md` at little cost.

    windows     what a server remembers of the requests that it has had
    desk        what a request hears that a server has seen before, or should not have got
    recutting   a worker's piece whose rows have got other owners
    repeats     the same for an app of a user's own

`kv.requests` is the same as a pure state machine, which names every slot of every request; here a
whole piece is one entry as long as no slot moves.
"""

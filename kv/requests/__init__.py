"""The rules of requests: every push counts exactly once, whatever the network and the nodes do.

    signature   who made a request: `Signature`, `Stream`, `Constituent`
    messages    what travels: `Request`, `Answer`, `Kind`; their fields are the wire header's
    slots       lists of them
    view        what the scheduler says: epoch, owners of slots, who lives and who is fenced
    windows     what a slot remembers of the pushes applied to it, and takes along when it moves
    outgoing    a maker of requests: cut by owner, resend, cut again, complete once
    pending     one request on its way through pieces and answers
    incoming    a server: apply, hold, refuse, answer again
    holdings    the slots a server has, as they come and go
    entries     the requests a server has in its hands
    work        what a server is to do, and the consistency mode that permits it
    merging     a dispatcher: many pushes of workers, one push to the servers
    errors      what can go wrong

All of it is bookkeeping: no socket, no thread, no clock; `now` is an argument, messages to send and
work to do are results. The payload stays outside: whoever calls keeps arrays beside a request and
cuts them by the slots named here. `docs/requests.md` tells the rules and why they hold.

Source: ps-lite, src/resender.h and src/customer.cc, for resending until answered and for requests
known by timestamp; slots, incarnations, windows that move and merged pushes are ours.
"""

from kv.requests.incoming import Incoming
from kv.requests.merging import Merged, Merging
from kv.requests.messages import Answer, Failure, Kind, Request
from kv.requests.outgoing import Outgoing, Progress
from kv.requests.signature import Clock, Constituent, Signature, Stream
from kv.requests.slots import Slots
from kv.requests.view import View
from kv.requests.windows import Windows
from kv.requests.work import Gate, SlotState, Work

__all__ = [
    "Answer",
    "Clock",
    "Constituent",
    "Failure",
    "Gate",
    "Incoming",
    "Kind",
    "Merged",
    "Merging",
    "Outgoing",
    "Progress",
    "Request",
    "Signature",
    "SlotState",
    "Slots",
    "Stream",
    "View",
    "Windows",
    "Work",
]

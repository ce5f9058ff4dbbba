"""Faults on purpose, as a user asks for them: `pslite local … --chaos "kill server@20s, drop 2%"`.

plan.py       what is to go wrong; `str` of it is the text that `parsing.py` reads
config.py     the ini section [chaos]
director.py   which process meets which fault, when: decisions only
network.py    faults of messages, inside each node
chronicle.py  what nodes note while it happens, RUN/chaos.jsonl
acting.py     the launcher's part: signals, and the report when the job is over
rates.py      how long the step rate suffered
report.py     the report, RUN/chaos.json
"""

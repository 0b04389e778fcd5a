"""`fencepost demo`: the promise on real input, with a worker killed in the middle, and an audit at the end.

`jobs.py` is the application (its handlers and its table), `crew.py` its worker processes, `run.py` the course of
events, `display.py` what a person sees of it, `audit.py` and `timetable.py`
what is checked of jobs and schedules when all is settled.
"""

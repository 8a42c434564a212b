"""Measures how evenly a running server streams: `worldstream bench`, and what `perf/cadence.py` calls.

`plan` says what is asked for; `run` asks for it over real streams (`walker`, `phases`, `cancelling`) and keeps what it
saw (`records`); `figures` makes numbers of that (`percentiles`, `viewer`, `arrivals` are their pure parts), `tables`
shows them, and `command` is the command line. Works against any server of this repository, and needs no torch.
"""

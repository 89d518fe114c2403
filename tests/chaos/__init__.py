"""The chaos suite: a farm of real processes that is broken every second, and audited when it has come to its end.

`plan` says what is broken and when, `workload` what is measured and which jobs are poisonous, `farm` keeps the processes,
`faults` breaks them, `audit` checks what the farm promises, and `run` puts them together.
"""

"""`hashidrill audit`: finds missing and harmful retry configuration. Reads files; starts and asks nothing.

`sources` finds and reads files, `kinds` tells what each one is, the `rules_*` modules judge, `run` does it all, and
`report` writes.
"""

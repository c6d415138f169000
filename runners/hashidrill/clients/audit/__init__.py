"""`hashidrill audit`: finds missing and harmful retry configuration. Reads files; starts and asks nothing.

`sources` finds and reads files, `kinds` tells what each one is, the `rules_*` modules judge, `unread` lists what could
not be read, `run` does it all, and the `report_*` modules write.
"""

"""`hashidrill audit`: is retry logic configured, and is it sane? Reads files; starts and asks nothing.

`sources` finds and reads the files, `kinds` says what each is, the `rules_*` modules judge, `suppress` takes out what
somebody decided with a reason, `run` does all of it, the `report_*` modules write.
"""

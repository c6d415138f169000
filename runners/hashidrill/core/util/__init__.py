"""What any room may use and no room owns: files, waiting, redaction, undo files. Nothing here knows an experiment."""

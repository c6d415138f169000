"""`hashidrill audit`: finds missing and harmful retry configuration by reading files, without starting anything."""

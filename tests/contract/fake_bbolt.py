"""As much of the `bbolt` command as the faults use, for files of the fake datacenter: `page` and `compact`."""

import re
import sys
from pathlib import Path


def page(path, *numbers):
    from hashidrill import boltdb

    newest = boltdb.read_meta(Path(path))
    content = Path(path).read_bytes()
    for number in map(int, numbers):
        at = number * newest.page_size
        print(f"Page ID:    {number}")
        if number < 2:
            _, _, _, _, _, _, freelist, pages, transaction = boltdb._META.unpack_from(content, at + boltdb._PAGE.size)
            print(f"Page Type:  meta\nFreelist:   <pgid={freelist}>\nHWM:        <pgid={pages}>")
            print(f"Txn ID:     {transaction}")
        elif number == newest.freelist:
            free = boltdb.free_pages(Path(path))
            print(f"Page Type:  freelist\nItem Count: {len(free)}\nOverflow: 0\n")
            print("\n".join(map(str, free)))


def compact(option, into, path):
    from hashidrill import boltdb
    from hashidrill.testing.raft import bolt_file

    assert option == "-o"
    bolt_file(Path(into), transaction=boltdb.read_meta(Path(path)).transaction)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "runners"))
    assert re.fullmatch("page|compact", sys.argv[1])
    {"page": page, "compact": compact}[sys.argv[1]](*sys.argv[2:])

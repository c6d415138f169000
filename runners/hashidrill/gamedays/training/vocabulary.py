"""What trainees call the parts of a datacenter and what goes wrong with them. `disk*` takes any ending."""

from __future__ import annotations


def _table(text: str) -> dict[str, list[str]]:
    """Rows of `name: word, phrase of words, ...`; a row goes on in lines that are indented further."""
    rows = dict(row.split(": ", 1) for row in text.replace("\n        ", " ").strip().splitlines())
    return {name.strip(): [word.strip() for word in words.split(",")] for name, words in rows.items()}


COMPONENTS = _table(
    """
    disk: disk*, storage, volume*, fsync*, fdatasync*, io, i/o, iops, ssd*, nvme, ebs, drive*, filesystem*, file
        system*, fs, block device*, data dir*, data partition, hdd, df, disc, discs, raft log
    network: network*, networking, link*, nic*, cable*, packet*, network switch, the switch, wire*, uplink*,
        interface*, connectivity, partition*, netsplit, split, ethernet, eth0, rack*, firewall*, no connection,
        nic, % loss, loss in
    cpu: cpu*, processor*, cores
    memory: memory, ram, oom*, swap*, heap, leak*
    clock: clock*, ntp, time skew
    database: raft.db, raft db, raftdb, boltdb, bolt*, bbolt, freelist*, free list*, free page*, freepage*, raft
        database, raft store, log store*
    streaming: streaming*, stream*, use_streaming_backend, subscri*, publish*, event buffer*, event publisher,
        event stream*
    locks: lock*, lease*, claim*
    retries: retr*, re-send*, resend*, again and again, resubmi*, re-tr*, repeat*, attempted again, trying again,
        tries again, try again, attempts, sends each one again, sent again, sends again, each one again, again up
        to, sending again
    allocations: alloc*, task*, placement*, scheduler*
    """
)
TROUBLES = _table(
    """
    slow: slow*, sluggish, latenc*, stall*, late, degrad*, delay*, takes ages, take ages, lag*, takes forever,
        crawl*, long time, too long, takes long, waiting for, waits for, wait for, dying, waits on
    full: full, no space*, out of space, enospc, ran out, run out, runs out, filled*, no free space, no room, 0
        bytes, 0 b free, exhausted, no disk space, out of disk, no more free, no more space, no free, no more
        room, at 100%, at 100 %, is 100%, says 100%, 100% on
    lossy: loss*, lossy, loses, losing, lose, lost, drop*, retransm*, flapping, flaky, discard*, throws packets,
        throws away, throwing packets
    cut off: partition*, cut off, cutoff, cut from, cut, unreachable, isolat*, disconnect*, unplugged, separat*,
        split*, netsplit, offline, no route, cannot reach, can't reach, lost contact, island*, can't be reached,
        cannot be reached, can't talk, can talk, no connection, lost their network, lost its network, no network,
        lost the network, is down, powered off, power is off, not reachable, no connectivity, switch port*, not
        reach*
    frozen: frozen, froze, freez*, stopped, paused, suspend*, sigstop*, stop signal, hung, state t, does not run,
        doesn't run, not scheduled, stuck, stopp*, kill -stop, halt*, stoped, kill -cont, signal cont, shows t,
        isn't running, not running, process hang*, agent hang*, consul hang*, sigcont, needs a cont
    bloated: bloat*, huge, oversized, grown, fragment*, freelist*, free page*, free list*, too big, empty pages,
        free space, free pages
    half-open: half-open, half open, halfopen, accept*, deliver*, swallow*, black-hol*, blackhol*, no bytes, no
        data, no answer*, no response*, never answer*, never repl*, no repl*, dead air, nothing comes back,
        nothing back, silent*, never arriv*, never gets, never comes, never get, no reply, without any answer,
        never sends, never send, vanish*, then silence, any answer arrive, eating the data, into a void, hangs
        forever, then hangs
    sealed: seal*, not unsealed, never unsealed, needs unseal*, unsealing, was not unsealed, unseal*, no one has
    failing: black hole*, blackhole*, black-hole*, fails everything, fails all*, fails every*, every* fail*, all
        alloc* fail*, alloc* fail*, task* fail*, read-only, readonly, read only, permission*, everything fails,
        eats*, swallow*, fails instantly, fail* at once, fail* immediately, dies within, die within, dies at once,
        can't create, cannot create, die at once, dies immediately, dies instantly, fails within, none of them
        ever start*, fails each, fail each, never start*, none ever start*, fails 100%, die in a second, dies in a
        second, mounted ro, instant failure*, instantly fail*
    overloaded: overload*, queue*, backlog*, pile*, waits in line, congest*, metastable, storm*, herd, amplif*,
        saturat*, flood*, hammer*, swamp*, too many, too much, stampede, drown*, waiting in line, too many
        request*, in line, can't keep up, cannot keep up, woken
    crashed: crash*, killed, died, dead, exited, restart loop, powered off, power is off, no ping, lost power,
        host is down
    """
)

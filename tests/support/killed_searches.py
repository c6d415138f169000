"""`hashidrill explore` killed with SIGKILL at random moments, and resumed after each kill.

HASHIDRILL_KILLS says how often, HASHIDRILL_KILL_SEED repeats a campaign.
"""

import contextlib
import json
import os
import random
import secrets
import signal
import subprocess
import sys
from pathlib import Path

from drills import environment
from hashidrill.faces.cli import explore as command
from hashidrill.faces.cli import main
from hashidrill.rollouts.bisect.trials import Outcome
from hashidrill.rollouts.explore.guidance import Seen
from hashidrill.rollouts.explore.lab_trials import LOG, RUNS, LabTrials
from leaks import VARIABLE, Ground
from store_trials import EXPERIMENT, StoreTrials

SEED = int(os.environ.get("HASHIDRILL_KILL_SEED", secrets.randbelow(10**6)))
BUG = "index-after-install"
ENDS_WITHIN_S = 300.0


class SimulatedLab(LabTrials):
    """Trials in a simulated network; that of one that held leaves a recording of two files."""

    def __enter__(self):
        (self.folder / RUNS).mkdir(parents=True, exist_ok=True)
        self._play = StoreTrials(self.trials.base["datacenter"]["store"].get("bug", ""), secrets.randbits(32))
        return self

    def __exit__(self, *_):
        pass

    def __call__(self, candidate, beat_s):
        run = self.folder / RUNS / secrets.token_hex(4)
        run.mkdir()
        (run / "begun").write_text("." * 1000)
        seen = self._play(candidate, beat_s)
        (run / "ended").write_text("." * 1000)
        recording = str(run) if seen.outcome is Outcome.HELD else ""
        return Seen(**{**vars(seen), "recording": recording})


def lines_of(log):
    """The whole lines of the log."""
    return [line for line in log.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]


class Campaign:
    """One search in a folder of its own. `cli`: the words that start the command; `bug`: the store's."""

    def __init__(self, cli, folder, *, bug=""):
        self._cli, self._folder = cli, folder
        self.work = Path(os.environ.get(VARIABLE, folder)) / f"killed-{secrets.token_hex(4)}"
        for each in (self.work, folder / "tmp"):
            each.mkdir()
        store = json.dumps({"store": {"bug": bug} if bug else {}})
        (folder / "store.yaml").write_text(EXPERIMENT.replace("{store: {}}", store))
        own = {VARIABLE: self.work, "XDG_STATE_HOME": folder / "state", "TMPDIR": folder / "tmp"}
        self._env, self.ground = environment(**own), Ground(self.work)

    def _start(self, words):
        return subprocess.Popen(
            [*self._cli, *map(str, words)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env=self._env,
            cwd=self._folder,
        )

    def _kill(self, words, after_s):
        process = self._start(words)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=after_s)
            return
        os.kill(process.pid, signal.SIGKILL)
        process.communicate(timeout=60)

    def run(self, kills, trials, latest_s, tell):
        """Fails if a trial is lost or counted twice, or if anything is left. Returns the log's folder."""
        kills = int(os.environ.get("HASHIDRILL_KILLS", kills))
        chance, before, log = random.Random(SEED), [], None
        asked = ["--trials", trials, "--json"]
        words = ["explore", "store.yaml", "--faults", "process.kill,network.partition", "--seed", "7", *asked]
        for number in range(kills):
            at_s = chance.uniform(0.2, latest_s)
            self._kill(words, at_s)
            left = [line for line in self.ground.left_after(15.0) if not line.startswith("directory")]
            assert not left, left
            assert not [*(self._folder / "tmp").iterdir()]
            log = next(self._folder.glob(f".hashidrill/explore/*/{LOG}"), None)
            if log is not None and lines_of(log):
                now = lines_of(log)
                assert now[: len(before)] == before, "a trial was lost"
                before, words = now, ["explore", "--resume", log.parent, *asked]
            tell(f"kill {number + 1} of {kills} at {at_s:4.1f}s: {max(len(before) - 1, 0)} trials are in the log")
        for _ in range(2):  # the second time there is nothing to do
            code, document, said = self._end(words)
            log = next(self._folder.glob(f".hashidrill/explore/*/{LOG}"))
            now = lines_of(log)
            assert code in {0, 1}, said
            assert now[: len(before)] == before, "a trial was lost"
            assert len(now) - 1 == document["trials"] == trials, "a trial was counted twice"
            before, words = now, ["explore", "--resume", log.parent, *asked]
        named = {json.loads(line)["recording"].rpartition("/")[2] for line in before[1:]}
        assert {path.name for path in (log.parent / RUNS).iterdir()} <= named
        assert self.ground.left_after(15.0) == []
        assert not [*(self._folder / "tmp").iterdir()]
        self.work.rmdir()
        return log.parent

    def _end(self, words):
        process = self._start(words)
        stdout, stderr = process.communicate(timeout=ENDS_WITHIN_S)
        return process.returncode, json.loads(stdout or "null"), stderr


SIMULATED = (sys.executable, __file__)

if __name__ == "__main__":
    command.LabTrials = SimulatedLab
    sys.argv[0] = "hashidrill"
    main()

#!/usr/bin/python3
"""A rank that stands still: the others hang, which is told while it lasts, and is in the report afterwards, also of a run
that did not outlive it."""
import os
import signal
import subprocess
import time

from common import ENV, SLOWER, Case, main


class Hang(Case):
    def ranks_of(self, p):
        """Process ids by rank."""
        found, tree = {}, [p.pid]
        for pid in tree:
            tree += map(int, subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True).stdout.split())
            with open(f"/proc/{pid}/environ", "rb") as f:
                for entry in f.read().split(b"\0"):
                    if entry.startswith(b"OMPI_COMM_WORLD_RANK="):
                        found[int(entry.split(b"=")[1])] = pid
        return found, tree

    def wait_for(self, what, seconds=30):
        deadline = time.time() + seconds
        while not what():
            self.assertLess(time.time(), deadline, "it never came")
            time.sleep(0.05)

    def alerts(self):
        with open(self.path("log")) as f:
            return f.read().count("(hang)")

    def steps(self):
        path = self.path("out", "train.csv")
        if not os.path.exists(path):
            return 0
        with open(path) as f:
            return sum(1 for _ in f)

    def test_a_rank_that_stands_still(self):
        args = self.job(2, self.config(steps=1000000), "--monitor", self.preset("monitor.yaml"), "--set",
                        f"monitor.output={self.path('run')}", "--set", "monitor.rules.hang.min_seconds=1.5", *SLOWER)
        with open(self.path("log"), "w") as log:
            p = subprocess.Popen(args, env=ENV, stdout=log, stderr=log, start_new_session=True)
        tree = [p.pid]
        try:
            self.wait_for(lambda: self.steps() > 30, 60)
            ranks, tree = self.ranks_of(p)
            os.kill(ranks[1], signal.SIGSTOP)
            self.wait_for(lambda: self.alerts() == 1)
            os.kill(ranks[1], signal.SIGCONT)
            at = self.steps()
            self.wait_for(lambda: self.steps() > at + 30)
            os.kill(ranks[1], signal.SIGSTOP)
            self.wait_for(lambda: self.alerts() == 2)
        finally:
            for pid in tree:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            p.wait()
        hangs = [k for k in self.report(self.path("run"))["incidents"] if k["rule"] == "hang"]
        self.assertEqual(len(hangs), 2)
        for hang in hangs:
            self.assertEqual((hang["severity"], hang["cause"]["name"]), ("critical", "hang"))
            self.assertGreater(hang["value"], 1.5)
        self.assertLess(hangs[0]["first_step"], hangs[1]["first_step"])
        self.assertIn("has gone on for", hangs[1]["message"])


main()

#!/usr/bin/python3
"""A rank that stands still: the others hang, which is told while it lasts, with the rank, and is in the report afterwards, also of
a run that did not outlive it."""
import os
import signal

from common import SLOWER, Case, main


class Hang(Case):
    def alerts(self):
        with open(self.path("log")) as f:
            return f.read().count("(hang)")

    def test_a_rank_that_stands_still(self):
        args = self.job(2, self.config(steps=1000000), "--monitor", self.preset("monitor.yaml"), "--set",
                        f"monitor.output={self.path('run')}", "--set", "monitor.rules.hang.min_seconds=5", *SLOWER)
        p = self.start(args, self.path("log"))
        self.wait_for(lambda: self.steps_made() > 30, 60)
        ranks = self.ranks_of(p)
        os.kill(ranks[1], signal.SIGSTOP)
        self.wait_for(lambda: self.alerts() == 1)
        os.kill(ranks[1], signal.SIGCONT)
        at = self.steps_made()
        self.wait_for(lambda: self.steps_made() > at + 30)
        os.kill(ranks[1], signal.SIGSTOP)
        self.wait_for(lambda: self.alerts() == 2)
        self.kill_tree(p)
        hangs = [k for k in self.report(self.path("run"))["incidents"] if k["rule"] == "hang"]
        self.assertEqual(len(hangs), 2)
        for hang in hangs:
            self.assertEqual((hang["severity"], hang["cause"]["name"], hang["rank"]), ("critical", "hang", 1))
            self.assertGreater(hang["value"], 4.9)
        self.assertLess(hangs[0]["first_step"], hangs[1]["first_step"])
        self.assertIn("has gone on for", hangs[1]["message"])
        self.assertIn("waiting for rank 1 (stopped by a signal)", hangs[1]["message"])


main()

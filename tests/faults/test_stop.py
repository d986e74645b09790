#!/usr/bin/python3
"""SIGINT and SIGTERM: a training stops in order at the first, and everything else ends at once; what was trained in full has succeeded."""
import fcntl
import os
import signal

from common import ENV, TRAIN, Case, main


class Stop(Case):
    def says(self, words):
        with open(self.path("log")) as f:
            return words in f.read()

    def test_while_it_waits_for_shards(self):
        settings = self.config(steps=12, save=5)
        self.run_program([TRAIN, settings])
        turn = os.open(self.path("shards"), os.O_RDONLY)  # another job makes shards there
        self.addCleanup(os.close, turn)
        fcntl.flock(turn, fcntl.LOCK_EX)
        for number in (signal.SIGINT, signal.SIGTERM):
            for more in ([], ["--print-structure"], ["--replay-batch", "11"]):
                with self.subTest(more=more):
                    p = self.start([TRAIN, settings, *more], self.path("log"))
                    self.wait_for(lambda: self.says("waiting for another job that makes shards in "))
                    p.send_signal(number)
                    self.assertEqual(p.wait(10), -number)

    def test_a_second_one_ends_a_stuck_run(self):
        env = dict(ENV, LD_PRELOAD=os.environ["KEEL_PRELOAD_misbehave"])
        p = self.start([TRAIN, self.config(steps=1000000)], self.path("log"), env)
        self.wait_for(lambda: self.steps_made() > 3, 60)
        p.send_signal(signal.SIGUSR1)  # its next product never ends
        p.send_signal(signal.SIGTERM)
        self.wait_for(lambda: self.says("keel-train: Terminated: stopping at the next step border"))
        self.assertIsNone(p.poll())
        p.send_signal(signal.SIGINT)
        self.assertEqual(p.wait(10), -signal.SIGINT)

    def test_after_the_last_update(self):
        p = self.run_program(["env", "LD_PRELOAD=" + os.environ["KEEL_PRELOAD_late_signal"], TRAIN, self.config(steps=5)])
        self.assertIn("Terminated: ", p.stderr)
        self.assertIn("trained model: ", p.stdout)


main()

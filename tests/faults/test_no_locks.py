#!/usr/bin/python3
"""A run directory without locks, as on NFS: said, written so that readers see whole copies, readable while it is written and after
kill -9; the next job finds what the last copy lacked."""
import os
import signal

import h5py

from common import ENV, KEEL, SLOWER, Case, main


class NoLocks(Case):
    def test_a_run_without_locks(self):
        env = dict(ENV, LD_PRELOAD=os.environ["KEEL_PRELOAD_no_locks"])
        run, settings = self.path("run"), self.config(steps=1000000, save=20)
        train = self.job(2, settings, "--monitor", self.preset("monitor-full.yaml"), "--set", f"monitor.output={run}", *SLOWER)
        p = self.start(train, self.path("log"), env)
        self.wait_for(lambda: self.steps_made() > 30, 60)
        with open(self.path("log")) as f:
            self.assertEqual(f.read().count("the file system has no locks"), 1)

        self.wait_for(lambda: self.report(run)["records"] > 20, 60)  # a copy every 10 s, read without locks or with them
        with h5py.File(os.path.join(run, "keel-0000.h5"), "r", swmr=True) as f:
            rows = f["steps"].shape[0]
            self.assertEqual(list(f["steps"]["step"]), list(range(1, rows + 1)))
        second = self.run_program(train[:1] + ["-x", "LD_PRELOAD=" + env["LD_PRELOAD"]] + train[1:] +
                                  ["--set", f"runner_config.output_dir={self.path('other')}", "--resume"], expect=None)
        self.assertNotEqual(second.returncode, 0)
        self.assertIn("another process records a run there", second.stderr)

        for pid in self.tree_of(p):
            os.kill(pid, signal.SIGSTOP)
        self.kill_tree(p)
        made = self.steps_made()
        killed = self.report(run)["records"]
        self.assertGreaterEqual(killed, rows)
        self.run_program([KEEL, "dump", run])
        again = self.start([*train, "--resume", "--set", f"runner_config.steps={made + 20}"], self.path("log"), env)
        self.assertEqual(again.wait(120), 0, open(self.path("log")).read()[-3000:])
        report = self.report(run)
        self.assertGreaterEqual(report["last_step"], made + 20)
        with h5py.File(os.path.join(run, "keel-0000.h5"), "r") as f:
            self.assertGreaterEqual(f["steps"].shape[0], made - 10)
        self.assertFalse(os.path.exists(os.path.join(run, "keel.lock")))


main()

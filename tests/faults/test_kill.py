#!/usr/bin/python3
"""kill -9 of the whole job at random moments: every store opens as it is, and lacks only what was under way.

KEEL_KILLS sets how many moments (default 6)."""
import os
import random
import shutil
import signal
import subprocess
import time

import h5py

from common import ENV, SLOWER, Case, main

KILLS = int(os.environ.get("KEEL_KILLS", "6"))
QUEUE_DEPTH = 8  # monitor.queue_depth of the presets
UNDER_WAY = 2 + QUEUE_DEPTH


class Kill(Case):
    def test_kill_the_whole_job(self):
        seed = int(os.environ.get("KEEL_SEED", time.time_ns() % 2**32))
        print(f"seed {seed}")
        rng = random.Random(seed)
        config = self.config(steps=1000000)
        opened = 0
        for kill in range(KILLS):
            ranks = 1 + kill % 2
            run, out = self.path(f"run{kill}"), self.path(f"out{kill}")
            args = self.job(ranks, config, "--monitor", self.preset("monitor-full.yaml"), "--set", f"monitor.output={run}", "--set",
                            f"runner_config.output_dir={out}", *SLOWER)
            p = subprocess.Popen(args, env=ENV, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
            # From the moment at which the store's first segment is there: the kill falls at any point of recording.
            deadline = time.time() + 60
            while not os.path.exists(os.path.join(run, "keel-0000.h5")) and time.time() < deadline:
                self.assertIsNone(p.poll(), "the job ended by itself")
                time.sleep(0.02)
            time.sleep(rng.uniform(0.3, 2.5))
            self.kill_job(p)
            made = self.steps_made(out)
            if made == 0:
                continue
            opened += 1
            with self.subTest(kill=kill, ranks=ranks, made=made):
                self.check(run, made)
            shutil.rmtree(run)
        self.assertGreater(opened, KILLS // 2, "too few jobs had begun to train")

    def kill_job(self, p):
        """mpirun gives its ranks process groups of their own: find all descendants first, stop them, then kill all."""
        tree = [p.pid]
        for pid in tree:
            children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True).stdout.split()
            tree += map(int, children)
        for sig in (signal.SIGSTOP, signal.SIGKILL):
            for pid in tree:
                try:
                    os.kill(pid, sig)
                except ProcessLookupError:
                    pass
        p.wait()

    def steps_made(self, out):
        try:
            with open(os.path.join(out, "train.csv")) as f:
                lines = f.read().split("\n")
        except FileNotFoundError:
            return 0
        whole = [l for l in lines[1:-1] if l]  # the last piece is empty or torn
        return int(whole[-1].split(",")[0]) if whole else 0

    def check(self, run, made):
        report = self.report(run)
        self.assertGreaterEqual(report["records"], made - UNDER_WAY)
        file = os.path.join(run, "keel-0000.h5")
        with h5py.File(file, "r", swmr=True) as f:
            rows = f["steps"].shape[0]
            self.assertEqual(rows, report["records"])
            self.assertEqual(list(f["steps"]["step"]), list(range(1, rows + 1)))
            names = [n.decode() for n in f["scalar_names"]]
            self.assertTrue((f["scalars"][:rows, names.index("loss")] > 0).all())
        self.run_program(["h5clear", "-s", file])
        self.run_program(["h5dump", "-H", file])
        self.run_program(["h5dump", "-d", "/steps", file])
        self.assertEqual(self.report(run)["records"], rows)


main()

#!/usr/bin/python3
"""The loss sequence is bit-identical with the monitor on, off and attached with every quantity, and after a stop and resume."""
import os
import signal
import subprocess
import time

import h5py

from common import ENV, SLOWER, Case, main


class Bits(Case):
    def train(self, name, ranks, *args, accumulation=2, steps=40, save=0):
        config = self.config(steps=steps, accumulation=accumulation, save=save)
        self.run_program(self.job(ranks, config, "--set", f"runner_config.output_dir={self.path(name)}", *SLOWER, *args))
        return self.losses(self.path(name))

    def monitored(self, name, preset):
        return ("--monitor", self.preset(preset), "--set", f"monitor.output={self.path(name + '-run')}")

    def test_the_monitor_changes_no_bit(self):
        for ranks in (1, 2):
            off = self.train(f"off{ranks}", ranks)
            self.assertEqual(len(off), 41)
            self.assertNotEqual(off[1], off[40])
            for preset in ("monitor.yaml", "monitor-full.yaml"):
                with self.subTest(ranks=ranks, preset=preset):
                    name = f"{preset}{ranks}"
                    self.assertEqual(self.train(name, ranks, *self.monitored(name, preset)), off)
                    self.assertEqual(self.report(self.path(name + "-run"))["records"], 40)

    def test_stop_and_resume(self):
        for ranks in (1, 2):
            whole = self.train(f"whole{ranks}", ranks, *self.monitored(f"whole{ranks}", "monitor.yaml"), save=10)
            out = self.path(f"cut{ranks}")
            config = self.config(steps=40, accumulation=2, save=10)
            args = ["--set", f"runner_config.output_dir={out}", *SLOWER, *self.monitored(f"cut{ranks}", "monitor.yaml")]
            self.run_program(self.job(ranks, config, *args, "--set", "runner_config.steps=25", "--set", "lr_schedule.total_steps=40"))
            self.run_program(self.job(ranks, config, *args, "--set", "lr_schedule.total_steps=40", "--resume"))
            got = {step: rest for step, *rest in self.losses(out)}
            self.assertEqual([[s, *got[s]] for s, *_ in whole], whole)
            self.assertEqual(self.report(self.path(f"cut{ranks}-run"))["last_step"], 40)
            ids = []
            for segment in ("keel-0000.h5", "keel-0001.h5"):
                with h5py.File(self.path(f"cut{ranks}-run", segment), "r") as f:
                    ids.append(f.attrs["run_id"])
            self.assertEqual(ids[0], ids[1])

    def test_sigterm_ends_in_order(self):
        config = self.config(steps=100000, save=1000)
        args = self.job(1, config, "--set", f"runner_config.output_dir={self.path('term')}", *self.monitored("term", "monitor.yaml"), *SLOWER)
        p = subprocess.Popen(args, env=ENV, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while p.poll() is None and not os.path.exists(self.path("term", "train.csv")):
            time.sleep(0.05)
        time.sleep(0.5)
        p.send_signal(signal.SIGTERM)
        out, err = p.communicate(timeout=60)
        self.assertEqual(p.returncode, 128 + signal.SIGTERM, err)
        steps = int(self.losses(self.path("term"))[-1][0])
        self.assertGreater(steps, 0)
        self.assertEqual(self.report(self.path("term-run"))["last_step"], steps)


main()

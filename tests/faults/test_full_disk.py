#!/usr/bin/python3
"""A full disk under the store: training ends normally, one loud warning, what was stored is readable; with space again recording goes on."""
import os
import subprocess
import time
import unittest

from common import ENV, KEEL, Case, main


def can_mount():
    return os.geteuid() == 0 and subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode == 0


@unittest.skipUnless(can_mount(), "needs root and leave to mount a tmpfs")
class FullDisk(Case):
    def setUp(self):
        super().setUp()
        self.disk = self.path("disk")
        os.mkdir(self.disk)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", self.disk], check=True)
        self.addCleanup(subprocess.run, ["umount", "-l", self.disk])

    def start(self, steps):
        config = self.config(steps=steps)
        return subprocess.Popen(self.job(2, config, "--monitor", self.preset("monitor-full.yaml"), "--set", f"monitor.output={self.disk}/run"),
                                env=ENV, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=self.dir)

    def fill(self):
        with open(os.path.join(self.disk, "ballast"), "wb") as f:
            try:
                while True:
                    f.write(b"\0" * 65536)
                    f.flush()
            except OSError:
                pass

    def test_training_goes_on(self):
        p = self.start(400)
        while not os.path.exists(f"{self.disk}/run/keel-0000.h5"):
            time.sleep(0.01)
        self.fill()
        out, err = p.communicate(timeout=120)
        self.assertEqual(p.returncode, 0, err)
        self.assertEqual(err.count("RECORDING PAUSES"), 1, err)
        os.remove(f"{self.disk}/ballast")
        report = self.report(f"{self.disk}/run")
        self.assertLess(report["records"], 400)

    def test_a_run_of_which_nothing_was_recorded_is_not_healthy(self):
        subprocess.run(["mount", "-o", "remount,size=3m", self.disk], check=True)  # the file, and no row
        out, err = self.start(3).communicate(timeout=120)
        self.assertIn("RECORDING PAUSES", err)
        checked = self.run_program([KEEL, "check", f"{self.disk}/run"], expect=2)
        self.assertRegex(checked.stdout, "^empty +.*: 0 records\n$")
        self.assertIn("EMPTY: no step was recorded", self.run_program([KEEL, "report", f"{self.disk}/run"]).stdout)

    def test_recording_goes_on(self):
        p = self.start(3000)
        while not os.path.exists(f"{self.disk}/run/keel-0000.h5"):
            time.sleep(0.01)
        self.fill()
        time.sleep(1.5)
        os.remove(f"{self.disk}/ballast")
        subprocess.run(["mount", "-o", "remount,size=2g", self.disk], check=True)
        out, err = p.communicate(timeout=240)
        self.assertEqual(p.returncode, 0, err)
        self.assertEqual(self.report(f"{self.disk}/run")["last_step"], 3000)


main()

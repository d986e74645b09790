#!/usr/bin/python3
"""The whole laboratory against its bars: how much is found, how soon, by the right name, and how rarely a healthy run is disturbed."""
import json
import os
import statistics
import subprocess
import unittest

from common import ENV, KEEL, main

SEED = os.environ.get("KEEL_LAB_SEED", "20261130")  # one that was not used while the rules were tuned
RUNS = os.environ.get("KEEL_LAB_RUNS", "5")


class Bars(unittest.TestCase):
    def test_bars(self):
        p = subprocess.run([KEEL, "lab", "--seed", SEED, "--runs", RUNS, "--json"], stdout=subprocess.PIPE, text=True, env=ENV)
        self.assertEqual(p.returncode, 0)
        found = json.loads(p.stdout)
        faults, healthy = found["faults"], found["healthy"]
        runs = sum(f["runs"] for f in faults)
        self.assertGreaterEqual(len(faults), 21)
        self.assertEqual(runs, int(RUNS) * len(faults))
        self.assertGreaterEqual(sum(f["found"] for f in faults), 0.95 * runs)
        self.assertGreaterEqual(sum(f["cause_first"] for f in faults), 0.85 * runs)
        self.assertLessEqual(statistics.median(f["latency_steps"] for f in faults if f["sudden"] and f["found"]), 2)
        for fault in faults:
            with self.subTest(fault=fault["name"]):
                if fault["rank_right"] is not None:
                    self.assertEqual(fault["rank_right"], fault["runs"])
        self.assertGreaterEqual(healthy["steps"], 20000 * int(RUNS))
        self.assertEqual(healthy["criticals"], 0)
        self.assertLessEqual(healthy["warnings"], 1 if healthy["steps"] < 200000 else healthy["steps"] // 100000)


main()

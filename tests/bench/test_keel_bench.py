"""keel-bench measures what it says and says it in its JSON. How fast anything is, is not judged here."""
import json
import os
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "faults"))
from common import BIN, ENV, TINY


def bench(*words):
    return subprocess.run([os.path.join(BIN, "keel-bench"), *words], env=ENV, capture_output=True, text=True)


class KeelBench(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.model = os.path.join(scratch.name, "tiny.yaml")
        with open(self.model, "w") as f:
            f.write(TINY.format(steps=10, accumulation=1, save=0, dir=scratch.name))

    def json(self, *words):
        p = bench(*words, "--json")
        self.assertEqual(p.returncode, 0, p.stderr)
        return json.loads(p.stdout)

    def test_overhead(self):
        # Of one block with the monitor between two without, the median of those is their mean.
        r = self.json("overhead", "--model", self.model, "--blocks", "1")
        self.assertAlmostEqual(r["overhead"], r["seconds_on"] / r["seconds_off"] - 1, delta=1e-4 * (1 + r["overhead"]))
        parts = r["parts"]
        self.assertEqual(set(parts), {"forward_backward", "grad_norm", "update"})
        without = {name: part["seconds_off"] for name, part in parts.items()}
        watched = {name: part["seconds_off"] + part["added"] for name, part in parts.items()}
        for seconds, step in ((without, r["seconds_off"]), (watched, r["seconds_on"])):
            self.assertGreater(min(seconds.values()), 0)
            self.assertLess(sum(seconds.values()), step)

    def test_train(self):
        r = self.json("train", "--model", self.model, "--steps", "1")
        self.assertAlmostEqual(sum(r["parts"].values()), 1, delta=1e-4)
        self.assertAlmostEqual(r["tokens_per_second"] * r["step_seconds"], 2 * 32, delta=0.01)

    def test_detect_and_store(self):
        self.assertEqual(self.json("detect", "--series", "50", "--steps", "40")["series"], 50)
        r = self.json("store", "--sites", "50", "--steps", "40")
        self.assertAlmostEqual(r["bytes_per_site_step"], r["ops"] * r["bytes_per_value_live"], delta=1e-4 * r["bytes_per_site_step"])

    def test_bad_values(self):
        for words in (("overhead", "--block", "7"), ("overhead", "--blocks", "x"), ("train", "--steps", "0"), ("detect", "--sites")):
            p = bench(*words)
            self.assertEqual((p.returncode, p.stdout), (2, ""))
            self.assertEqual(p.stderr.count("\n"), 1, p.stderr)
            self.assertIn(words[1], p.stderr)


unittest.main()

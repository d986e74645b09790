#!/usr/bin/python3
"""What one job reads stays as it is: another that wants other shards is refused, and commands that write nothing write nothing."""
import os

from common import TRAIN, Case, main

OTHER = ("--set", "train_dataset.shard_tokens=1000")


class SharedFolders(Case):
    def everything(self):
        found = {}
        for folder, _, files in os.walk(self.dir):
            found[folder] = None
            for name in files:
                path = os.path.join(folder, name)
                found[path] = os.stat(path).st_mtime_ns
        return found

    def test_shards_of_a_running_job(self):
        settings = self.config(steps=1000000)
        p = self.start([TRAIN, settings, "--set", "train_dataset.shard_tokens=2000"], self.path("log"))
        self.wait_for(lambda: self.steps_made() > 3, 60)
        before = os.listdir(self.path("shards"))
        second = self.run_program([TRAIN, settings, *OTHER, "--set", f"runner_config.output_dir={self.path('other')}"], expect=2)
        self.assertEqual(second.stderr.count("another job uses the shards in "), 1, second.stderr)
        self.assertEqual(sorted(os.listdir(self.path("shards"))), sorted(before))
        made = self.steps_made()
        self.wait_for(lambda: self.steps_made() > made + 200, 60)  # over many shards
        p.terminate()
        self.assertEqual(p.wait(60), 128 + 15)

    def test_structure_before_there_is_anything(self):
        settings = self.config(save=5)
        before = self.everything()
        p = self.run_program([TRAIN, settings, "--print-structure"])
        self.assertIn("no shards yet", p.stdout)
        self.assertIn("collectives: none, with one rank", p.stdout)
        self.assertEqual(self.everything(), before)

    def test_structure_and_replay_of_a_run(self):
        settings = self.config(steps=12, save=5)
        self.run_program([TRAIN, settings])
        newest = self.path("out", "checkpoints", "step-0000000012.safetensors")
        with open(newest, "r+b") as f:
            f.seek(os.path.getsize(newest) // 2)
            f.write(b"damage")
        before = self.everything()
        p = self.run_program([TRAIN, settings, *OTHER, "--print-structure", "--resume"])
        self.assertIn("passed over, the one before it is tried", p.stdout)
        self.assertIn("the shards are used as they are", p.stdout)
        p = self.run_program([TRAIN, settings, *OTHER, "--replay-batch", "11"])
        self.assertIn("the shards are used as they are", p.stdout)
        self.assertIn("verdict: healthy", p.stdout)
        self.assertEqual(self.everything(), before)


main()

"""Is it the data? Runs with a fault at one step, and what keel-train --replay-batch says of that step."""
import os

import common

STEP = 26
NAN = "kind: nan, step: 26, rank: {rank}, site: layers.1.mlp.down, quantity: activation"


class Replay(common.Case):
    def train_and_replay(self, ranks, fault, *more, accumulation=1, ends=0):
        extra = "faults:\n  - {" + fault.format(rank=ranks - 1) + "}\n" if fault else ""
        args = self.job(ranks, self.config(steps=30, save=20, accumulation=accumulation, extra=extra), *more)
        self.run_program(args, expect=ends)
        before = {name: os.path.getmtime(self.path("out", name)) for name in os.listdir(self.path("out"))}
        p = self.run_program([*args, "--replay-batch", str(STEP)])
        after = {name: os.path.getmtime(self.path("out", name)) for name in os.listdir(self.path("out"))}
        self.assertEqual(before, after, "a replay writes nothing")
        verdicts = [line for line in p.stdout.splitlines() if line.startswith("verdict: ")]
        self.assertEqual(len(verdicts), 1, p.stdout)
        return verdicts[0], p.stdout

    def test_garbage_is_bad_data_on_every_rank(self):
        for ranks in (2, 4):
            with self.subTest(ranks=ranks):
                verdict, _ = self.train_and_replay(ranks, "kind: garbage_batch, step: 26, rank: {rank}")
                self.assertIn(f"verdict: bad data: the batch of rank {ranks - 1} has loss ", verdict)

    def test_a_rank_that_stays_broken_is_hardware(self):
        for ranks in (2, 4):
            with self.subTest(ranks=ranks):
                verdict, _ = self.train_and_replay(ranks, NAN + ", steps: 100000", ends=1)
                self.assertIn(f"verdict: hardware: always on rank {ranks - 1}: ", verdict)

    def test_ranks_that_hold_the_model_together_are_named_together(self):
        verdict, _ = self.train_and_replay(4, NAN + ", steps: 100000", "--set", "parallel_config.model_parallel=2", ends=1)
        self.assertIn("verdict: hardware: always on data-parallel rank 1: ", verdict)
        self.assertTrue(verdict.endswith("; data-parallel rank 1 is ranks 2 to 3"), verdict)

    def test_experts_of_several_ranks_are_refused(self):
        config = self.config(steps=12, save=10, extra="moe_config: {expert_num: 2}\n")
        args = self.job(2, config, "--set", "parallel_config.expert_parallel=2")
        self.run_program(args)
        p = self.run_program([*args, "--replay-batch", "11"], expect=2)
        self.assertIn("cannot tell with parallel_config.expert_parallel 2: ", p.stderr)

    def test_what_struck_once_is_transient(self):
        verdict, text = self.train_and_replay(2, NAN, "--set", "monitor.enabled=true", "--set",
                                              f"monitor.output={self.path('run')}", accumulation=2)
        self.assertIn("verdict: transient: step 26 recorded loss nan, gradient norm nan; ", verdict)
        self.assertRegex(text, r"step 26 recorded +nan +nan\nstep 26 again +\d\.\d+ ")

    def test_a_flipped_bit_does_not_come_again(self):
        verdict, _ = self.train_and_replay(
            2, "kind: bit_flip, step: 26, rank: {rank}, site: layers.1.mlp.down.weight, index: 7, bit: 30")
        self.assertIn("verdict: transient: step 26 recorded loss ", verdict)

    def test_a_sound_step_comes_again_to_the_bit(self):
        verdict, text = self.train_and_replay(2, "")
        self.assertIn("verdict: healthy: nothing stands out at step 26: ", verdict)
        recorded, again = (line.split()[-2:] for line in text.splitlines() if line.startswith("step 26 "))
        self.assertEqual(recorded, again)

    def test_the_settings_are_neither(self):
        verdict, _ = self.train_and_replay(2, "kind: learning_rate, step: 22, steps: 4, factor: 300")
        self.assertIn("verdict: cannot tell: ", verdict)

    def test_one_rank_tells_data_from_the_rest(self):
        verdict, _ = self.train_and_replay(1, "kind: garbage_batch, step: 26")
        self.assertIn("verdict: bad data: ", verdict)
        self.assertIn("with one rank", verdict)
        verdict, _ = self.train_and_replay(1, NAN)
        self.assertIn("verdict: not the data: ", verdict)

    def test_what_cannot_be_replayed_is_one_line_and_two(self):
        config = self.config(steps=12, save=10)
        def refused(step, wanted, *more):
            p = self.run_program([common.TRAIN, config, "--replay-batch", step, *more], expect=2)
            self.assertEqual(len(p.stderr.splitlines()), 1, p.stderr)
            self.assertIn(wanted, p.stderr)
        refused("11", "train.csv")  # no run there
        self.run_program([common.TRAIN, config])
        refused("13", "train.csv: step 13 was not recorded; steps 1 to 12 were")
        refused("10", "no whole checkpoint before step 10; the oldest is of step 10")
        refused("0", "--replay-batch wants a step, from 1, not 0")
        refused("11", "does not go with --resume", "--resume")


common.main()

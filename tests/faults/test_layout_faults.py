"""A fault on one rank of a data, a tensor and a pipeline parallel layout: the incident names that rank."""
import unittest

import common

STEP = 130
LAYOUTS = {  # ranks, settings
    "dp": (3, "data_parallel=3"),
    "tp": (2, "model_parallel=2"),
    "pp": (2, "pipeline_stage=2"),
    "dp x tp": (4, "model_parallel=2"),
    "dp x pp": (4, "pipeline_stage=2"),
}


class LayoutFaults(common.Case):
    def incidents(self, layout, fault):
        ranks, setting = LAYOUTS[layout]
        self.runs = getattr(self, "runs", 0) + 1
        run = self.path(f"run-{self.runs}")
        config = self.config(steps=STEP + 30, extra="faults:\n  - {" + fault + "}\n")
        p = self.run_program(self.job(ranks, config, "--monitor", self.preset("monitor-full.yaml"), "--set", f"monitor.output={run}",
                                  "--set", f"parallel_config.{setting}", "--set", "monitor.queue_depth=256",
                                  "--set", f"runner_config.output_dir={run}-out"), expect=None, timeout=300)
        self.assertIn(p.returncode, (0, 1), p.stderr[-2000:])
        found = [i for i in self.report(run)["incidents"] if i["severity"] != "info" and i["last_step"] >= STEP]
        self.assertTrue(found, f"{layout}: {fault}: nothing was found")
        return found

    def named(self, layout, fault, rank):
        found = self.incidents(layout, fault)
        first = min(found, key=lambda i: i["first_step"])
        self.assertEqual(first["rank"], rank, f"{layout}: {fault}: {first}")
        return first

    def test_a_weight_of_one_rank(self):
        # In dp a copy, in tp and pp a part that no other rank has. Of copies on two ranks nobody knows which is right.
        for layout, rank, layer in (("dp", 1, 1), ("tp", 1, 1), ("pp", 1, 1), ("pp", 0, 0), ("dp x tp", 3, 1), ("dp x pp", 2, 1)):
            with self.subTest(layout=layout, rank=rank):
                first = self.named(layout, f"kind: bit_flip, step: {STEP}, rank: {rank}, site: layers.{layer}.mlp.down.weight, "
                                           "index: 7, bit: 30", rank)
                self.assertIn("mlp.down", first["site"])

    def test_the_data_of_one_rank(self):
        for layout, rank in (("dp", 2), ("dp x tp", 2), ("dp x pp", 1)):
            with self.subTest(layout=layout, rank=rank):
                self.named(layout, f"kind: corrupt_data, step: {STEP}, rank: {rank}", rank)

    def test_a_slow_rank_is_named(self):
        # Nothing before it is slow, though stages and experts have unequal work.
        experts = "moe_config: {expert_num: 4, num_experts_chosen: 2}\n"
        for setting, rank, extra in (("data_parallel=2", 1, ""), ("model_parallel=2", 0, ""), ("pipeline_stage=2", 0, ""),
                                     ("expert_parallel=2", 1, experts)):
            with self.subTest(setting=setting, rank=rank):
                run = self.path(f"slow-{setting}-{rank}")
                config = self.config(steps=STEP + 65, extra=f"{extra}faults:\n  - {{kind: straggler, step: {STEP}, rank: {rank}, "
                                                            "seconds: 0.06}\n")
                self.run_program(self.job(2, config, "--set", "monitor.queue_depth=256", "--monitor", self.preset("monitor.yaml"), "--set", f"monitor.output={run}",
                                          "--set", f"parallel_config.{setting}", "--set", f"runner_config.output_dir={run}-out"))
                found = [i for i in self.report(run)["incidents"] if i["rule"] == "straggler"]
                self.assertEqual([i["rank"] for i in found], [rank], found)
                self.assertGreaterEqual(found[0]["first_step"], STEP - 40)  # the window of the rule


if __name__ == "__main__":
    unittest.main()

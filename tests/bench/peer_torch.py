#!/usr/bin/python3
"""Trains the GPT-2 124M that keel-bench trains, with PyTorch, for a side-by-side: the same sizes, batch, optimizer and threads.

usage: peer_torch.py [--seq 64] [--steps 6] [--threads 2] [--hooks]
--hooks takes norm, max, min and zeros of every block's output in forward hooks, as tools for it do.
Prints JSON: seconds_per_step (median), tokens_per_second, torch. Needs Debian's python3-torch."""
import argparse
import json
import math
import statistics
import time

import torch
from torch import nn

BATCH, LAYERS, WIDTH, HEADS, VOCABULARY = 4, 12, 768, 12, 50304


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x, mask):
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, HEADS, c // HEADS).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-2, -1)) / math.sqrt(c // HEADS) + mask
        x = x + self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, c))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    def __init__(self, seq):
        super().__init__()
        self.token, self.position = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(seq, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.register_buffer("mask", torch.full((seq, seq), float("-inf")).triu(1))

    def forward(self, tokens, targets):
        x = self.token(tokens) + self.position.weight
        for block in self.blocks:
            x = block(x, self.mask)
        logits = self.norm(x) @ self.token.weight.t()
        return nn.functional.cross_entropy(logits.view(-1, VOCABULARY), targets.reshape(-1))


def observe(module, inputs, output):
    module.seen = [output.norm().item(), output.max().item(), output.min().item(), (output == 0).float().mean().item()]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seq", type=int, default=64)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--hooks", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    model = Model(args.seq)
    if args.hooks:
        for block in model.blocks:
            block.register_forward_hook(observe)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1)
    seconds = []
    for _ in range(args.steps + 1):
        tokens = torch.randint(0, VOCABULARY, (BATCH, args.seq + 1))
        began = time.monotonic()
        optimizer.zero_grad(set_to_none=True)
        loss = model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        seconds.append(time.monotonic() - began)
    step = statistics.median(seconds[1:])  # the first one allocates
    print(json.dumps({"seconds_per_step": step, "tokens_per_second": BATCH * args.seq / step, "torch": torch.__version__}))


main()

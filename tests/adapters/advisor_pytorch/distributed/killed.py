"""Rank 1 is killed during a data-parallel training; the next all-reduce of rank 0 raises."""

from __future__ import annotations

import os
import signal
import sys
import time

import torch
from script import begin, logger
from torch import nn
from torch.nn.parallel import DistributedDataParallel

rank, _ = begin()
if "patient" in sys.argv:  # else the launcher ends this rank after the other rank was killed
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
model = DistributedDataParallel(nn.Linear(3, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
log = logger(model, optimizer, "bereft", max_train_steps=1000)
try:
    for step in range(1000):
        loss = model(torch.ones(2, 3)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        log.step(loss)
        time.sleep(0.02)
        if step == 60 and rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
except RuntimeError as error:
    log.close(error=error)

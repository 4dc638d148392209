from __future__ import annotations

import json

import torch
from torch import nn

from advisor_pytorch.distributed import rank_facts


def test_the_tag_tells_what_ranks_have_alike_and_what_not() -> None:
    messages = json.loads(rank_facts.describe_ranks("ddp", "gloo", [{"seed": 1, "host": "a"}, {"seed": 2, "host": "a"}, None]))
    assert messages == {
        "world_size": 3,
        "parallel": "ddp",
        "backend": "gloo",
        "facts": {"seed": {"by_rank": [1, 2, None]}, "host": {"by_rank": ["a", "a", None]}},
    }
    assert json.loads(rank_facts.describe_ranks("ddp", "gloo", [{"seed": 1}] * 2))["facts"] == {"seed": {"same": 1}}
    assert json.loads(rank_facts.describe_ranks("ddp", "gloo", [{"seed": 1}, {"seed": True}]))["facts"]["seed"] != {"same": 1}


def test_the_tag_of_very_many_ranks_still_fits_and_is_whole() -> None:
    facts = [{"host": f"node-{i // 8:04d}.cluster", "seed": i} for i in range(4096)]
    text = rank_facts.describe_ranks("fsdp", "nccl", facts)
    assert len(text) <= rank_facts.MAX_VALUE_CHARS
    messages = json.loads(text)
    assert messages["world_size"] == 4096
    assert messages["facts"]["seed"]["by_rank"][-1] == "..."
    assert messages["facts"]["seed"]["by_rank"][:3] == [0, 1, 2]


def test_the_batch_is_that_of_all_ranks() -> None:
    assert rank_facts.global_batch_size([{"batch_size": 8}, {"batch_size": 16}]) == 24
    assert rank_facts.global_batch_size([{"batch_size": 8}, None, {}]) == 24
    assert rank_facts.global_batch_size([{}, None]) is None


def test_what_a_rank_tells_of_itself() -> None:
    plain = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    synchronised = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
    facts = [rank_facts.process_facts(m, 5, is_rank_0=True, checkpoints=False) for m in (plain, synchronised, nn.Linear(2, 2))]
    assert [f.get("sync_batch_norm") for f in facts] == [False, True, None]
    assert facts[0]["seed"] == 5
    torch.manual_seed(11)
    assert rank_facts.process_facts(plain, None, is_rank_0=True, checkpoints=False)["seed"] == 11


def test_what_a_loader_tells_of_its_shuffling() -> None:
    data = torch.utils.data.TensorDataset(torch.zeros(10, 1))
    torch.manual_seed(11)
    by_default = torch.utils.data.DataLoader(data, shuffle=True)
    seeded = torch.utils.data.DataLoader(data, shuffle=True, generator=torch.Generator().manual_seed(5))
    sampler = torch.utils.data.DistributedSampler(data, num_replicas=2, rank=1, seed=9)
    sharded = torch.utils.data.DataLoader(data, sampler=sampler)
    stage_order = torch.utils.data.DataLoader(data)
    assert rank_facts.loader_facts(by_default) == {"loader_seed": 11, "shard_examples": 10}
    assert rank_facts.loader_facts(seeded) == {"loader_seed": 5, "shard_examples": 10}
    assert rank_facts.loader_facts(sharded) == {"loader_seed": 9, "shard_examples": 5}
    assert rank_facts.loader_facts(stage_order) == {"shard_examples": 10}
    assert rank_facts.loader_facts(iter([])) == {}

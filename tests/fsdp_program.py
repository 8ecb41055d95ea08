"""Test program for torchrun (gloo): FSDP2 on a DeviceMesh, with torch.distributed.checkpoint.

It trains a few steps, saves model, optimizer and loader, or loads them first, and writes the keys of each step.
"""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import wds_tools as wt


class Training:
    """Model and optimizer, in the form that torch.distributed.checkpoint saves for any number of ranks."""

    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer

    def state_dict(self):
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state):
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


def main(dataset, folder, out, steps):
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp",))
    loader = wt.make_loader(
        dataset,
        batch_size=8 // dist.get_world_size(),
        view=wt.RandomResizedCrop(16, flip=True),
        shuffle=True,
        fields=("image", "label", "__key__"),
        group=mesh["dp"],
        num_workers=1,
    )
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 16), nn.ReLU(), nn.Linear(16, 8))
    fully_shard(model, mesh=mesh["dp"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    parts = {"training": Training(model, optimizer), "loader": loader}
    if Path(folder).exists():
        dcp.load(parts, checkpoint_id=folder)
    dist.barrier()
    lines = []
    for _, (images, labels, keys) in zip(range(int(steps)), loader, strict=False):
        loss = nn.functional.cross_entropy(model(images / 255), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        dist.all_reduce(loss)
        lines.append({"loss": loss.item() / dist.get_world_size(), "keys": keys})
    dcp.save(parts, checkpoint_id=folder)
    Path(f"{out}-{dist.get_rank()}.json").write_text(json.dumps(lines))
    loader.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])

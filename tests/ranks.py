"""A program of the tests: ranks of torch.distributed (gloo) in processes of their own, as torchrun would start them.

It reads its orders as JSON and writes what each rank saw as JSON, one list over ranks. torch is imported once, before
the processes part.
"""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path


def run_ranks(**orders):
    """Run ranks; return what each of them tells: keys per step, proof, state, error."""
    orders = {key: str(value) if isinstance(value, Path) else value for key, value in orders.items()}
    done = subprocess.run(
        [sys.executable, __file__, json.dumps(orders)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def free_port():
    """Return a port that no connection of another test is given meanwhile: it is not among the ephemeral ports."""
    while True:
        with socket.socket() as free, suppress(OSError):
            free.bind(("127.0.0.1", random.randrange(20_000, 32_000)))
            return free.getsockname()[1]


def main(orders):
    import wds_tools as wt  # noqa: F401 - loaded before the processes part
    import wds_tools.loading.loader  # noqa: F401

    world = orders["world"]
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()), WORLD_SIZE=str(world))
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for rank in range(world):
            child = os.fork()
            if not child:
                os.environ["RANK"] = str(rank)
                Path(folder, str(rank)).write_text(json.dumps(_rank(orders)))
                os._exit(0)
            children.append(child)
        codes = [os.waitpid(child, 0)[1] for child in children]
        assert codes == [0] * world, codes
        sys.stdout.write(json.dumps([json.loads(Path(folder, str(rank)).read_text()) for rank in range(world)]))


def _rank(orders):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    if orders.get("kind", "").startswith("late"):
        return _late(orders)
    dist.init_process_group("gloo")
    try:
        seen = {"streaming": _streaming, "loader": _loader, "ahead": _ahead}[orders.get("kind", "loader")](orders)
        dist.barrier()  # hangs if a rank has taken fewer steps than the others
    except Exception as error:
        seen = {"error": f"{type(error).__name__}: {error}"}
    if not orders.get("may_fail"):
        dist.destroy_process_group()
    return seen


def _late(orders):
    """Create the loader first and the process group after it, as Lightning and torch.multiprocessing.spawn do."""
    import torch.distributed as dist
    from torch.utils.data import DataLoader

    import wds_tools as wt

    rank, world = int(os.environ.pop("RANK")), int(os.environ.pop("WORLD_SIZE"))
    where = f"tcp://127.0.0.1:{os.environ['MASTER_PORT']}"
    workers = orders.get("workers", 0)
    seen = {}

    def begin():
        dist.init_process_group("gloo", init_method=where, rank=rank, world_size=world)

    try:
        if orders["kind"] == "late streaming":
            dataset = wt.StreamingDataset(orders["dataset"], **_options(orders))
            context = orders.get("context") if workers else None
            loader = DataLoader(dataset, orders["batch"], num_workers=workers, multiprocessing_context=context)
            before = len(dataset)
            begin()
            seen = {"steps": [batch.key for batch in loader], "lens": [before, len(dataset)]}
        else:
            with wt.make_loader(orders["dataset"], num_workers=workers, **_options(orders)) as loader:
                before = len(loader)
                if rank in orders.get("early", ()):  # this rank begins its epoch before the group exists
                    batches = iter(loader)
                    first = [next(batches).key]
                    begin()
                    seen["steps"] = first + [batch.key for batch in batches]
                else:
                    begin()
                    seen["steps"] = [batch.key for batch in loader]
                seen |= {"lens": [before, len(loader)], "proof": str(loader.epoch_proof())}
    except Exception as error:
        seen["error"] = f"{type(error).__name__}: {error}"
    dist.barrier()  # the store of rank 0 must outlive what the others ask of it
    if not orders.get("may_fail"):
        dist.destroy_process_group()
    return seen


def _ahead(orders):
    """Let rank 0 take all epochs before rank 1 begins."""
    import torch.distributed as dist

    import wds_tools as wt

    with wt.make_loader(orders["dataset"], num_workers=0, **_options(orders)) as loader:
        if dist.get_rank() == 1:
            dist.barrier()
        for _ in range(orders["epochs"]):
            list(loader)
        if dist.get_rank() == 0:
            dist.barrier()
        return {"proof": str(loader.epoch_proof())}


def _options(orders):
    import torch.distributed as dist

    options = {"batch_size": orders["batch"], "fields": ("__key__",), "shuffle": True, **orders.get("options", {})}
    if "mesh" in orders:
        shape, names, wanted = orders["mesh"]
        mesh = dist.device_mesh.init_device_mesh("cpu", tuple(shape), mesh_dim_names=tuple(names))
        options["group"] = mesh[wanted] if wanted else mesh
    if "group" in orders:
        groups = [dist.new_group(members) for members in orders["group"]]
        options["group"] = groups[[dist.get_rank() in members for members in orders["group"]].index(True)]
    return options


def _loader(orders):
    import torch
    import torch.distributed as dist

    import wds_tools as wt

    with wt.make_loader(orders["dataset"], num_workers=orders.get("workers", 0), **_options(orders)) as loader:
        if "state" in orders:
            loader.load_state_dict(orders["state"])
        steps = []
        for batch in loader:
            valid = batch.valid.tolist() if "valid" in batch._fields else [True] * len(batch.key)
            steps.append([key for key, ok in zip(batch.key, valid, strict=True) if ok])
            if orders.get("lockstep", True):
                together = torch.ones(1)
                dist.all_reduce(together)  # hangs if a rank takes fewer steps
            if len(steps) == orders.get("stop"):
                break
        proof = loader.epoch_proof()
        return {"steps": steps, "state": loader.state_dict(), "proof": str(proof), "ok": proof.ok, "len": len(loader)}


def _streaming(orders):
    from torch.utils.data import DataLoader

    import wds_tools as wt

    dataset = wt.StreamingDataset(orders["dataset"], **_options(orders))
    loader = DataLoader(dataset, batch_size=orders["batch"], num_workers=orders.get("workers", 0))
    return {"steps": [batch.key for batch in loader]}


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))

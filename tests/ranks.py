"""Test program that runs a test case in the processes of torch.distributed (gloo), one for each rank."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

import preloaded


def run_ranks(*, world, **case):
    """Run a test case; return the results of each rank: keys per step, proof, state, error."""
    case = {key: str(value) if isinstance(value, Path) else value for key, value in case.items()}
    with tempfile.TemporaryDirectory() as folder:
        done = preloaded.run([__file__, json.dumps(case), folder], ranks=world)
        assert done.returncode == 0, done.stderr
        return [json.loads(Path(folder, str(rank)).read_text()) for rank in range(world)]


def main():
    """Run the test case of the command line, and write the results of this rank."""
    case, folder = sys.argv[1:]
    for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"):  # as if each rank were a machine
        del os.environ[name]
    rank, values = os.environ["RANK"], json.loads(case)
    if values.pop("machines", False):  # as torchrun sets them with one process per machine
        os.environ.update(
            LOCAL_RANK="0", LOCAL_WORLD_SIZE="1", GROUP_RANK=rank, GROUP_WORLD_SIZE=os.environ["WORLD_SIZE"]
        )
    Path(folder, rank).write_text(json.dumps(_rank(values)))


def _rank(case):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    if case.get("kind", "").startswith("late"):
        return _late(case)
    dist.init_process_group("gloo")
    try:
        result = {"streaming": _streaming, "loader": _loader, "ahead": _ahead}[case.get("kind", "loader")](case)
        dist.barrier()  # hangs if a rank has taken fewer steps than the others
    except Exception as error:
        result = {"error": f"{type(error).__name__}: {error}"}
    if not case.get("may_fail"):
        dist.destroy_process_group()
    return result


def _late(case):
    """Create the loader first and the process group after it, as Lightning and torch.multiprocessing.spawn do."""
    import torch.distributed as dist
    from torch.utils.data import DataLoader

    import wds_tools as wt

    rank, world = int(os.environ.pop("RANK")), int(os.environ.pop("WORLD_SIZE"))
    init_method = f"tcp://127.0.0.1:{os.environ['MASTER_PORT']}"
    workers = case.get("workers", 0)
    result = {}

    def create_group():
        dist.init_process_group("gloo", init_method=init_method, rank=rank, world_size=world)

    try:
        if case["kind"] == "late streaming":
            dataset = wt.StreamingDataset(case["dataset"], **_options(case))
            context = case.get("context") if workers else None
            if context == "spawn" and rank == 0:  # one spawned Python is enough; a lost rank would be 0 of 1
                context = "fork"
            loader = DataLoader(dataset, case["batch"], num_workers=workers, multiprocessing_context=context)
            before = len(dataset)
            create_group()
            result = {"steps": [batch.key for batch in loader], "lens": [before, len(dataset)]}
        else:
            with wt.make_loader(case["dataset"], num_workers=workers, **_options(case)) as loader:
                before = len(loader)
                if rank in case.get("early", ()):  # this rank starts its epoch before the group exists
                    batches = iter(loader)
                    first = [next(batches).key]
                    create_group()
                    result["steps"] = first + [batch.key for batch in batches]
                else:
                    create_group()
                    result["steps"] = [batch.key for batch in loader]
                result |= {"lens": [before, len(loader)], "proof": str(loader.epoch_proof())}
    except Exception as error:
        result["error"] = f"{type(error).__name__}: {error}"
    dist.barrier()  # rank 0 hosts the store, so it must exit last
    if not case.get("may_fail"):
        dist.destroy_process_group()
    return result


def _ahead(case):
    """Let rank 0 finish all epochs before rank 1 starts."""
    import torch.distributed as dist

    import wds_tools as wt

    with wt.make_loader(case["dataset"], num_workers=0, **_options(case)) as loader:
        if dist.get_rank() == 1:
            dist.barrier()
        for _ in range(case["epochs"]):
            list(loader)
        if dist.get_rank() == 0:
            dist.barrier()
        return {"proof": str(loader.epoch_proof())}


def _options(case):
    import torch.distributed as dist

    options = {"batch_size": case["batch"], "fields": ("__key__",), "shuffle": True, **case.get("options", {})}
    if "mesh" in case:
        shape, names, dimension = case["mesh"]
        mesh = dist.device_mesh.init_device_mesh("cpu", tuple(shape), mesh_dim_names=tuple(names))
        options["group"] = mesh[dimension] if dimension else mesh
    if "group" in case:
        groups = [dist.new_group(members) for members in case["group"]]
        options["group"] = groups[[dist.get_rank() in members for members in case["group"]].index(True)]
    return options


def _loader(case):
    import torch
    import torch.distributed as dist

    import wds_tools as wt
    from wds_tools.loading import ranks

    ranks.AGREEMENT_SECONDS = case.get("agreement_seconds", ranks.AGREEMENT_SECONDS)
    ranks.LOOK_SECONDS = case.get("look_seconds", ranks.LOOK_SECONDS)
    with wt.make_loader(case["dataset"], num_workers=case.get("workers", 0), **_options(case)) as loader:
        if "state" in case:
            loader.load_state_dict(case["state"])
        packs = loader.packing is not None and loader.packing.pid is not None
        steps = []
        for batch in loader:
            valid = batch.valid.tolist() if "valid" in batch._fields else [True] * len(batch.key)
            steps.append([key for key, ok in zip(batch.key, valid, strict=True) if ok])
            if case.get("lockstep", True):
                dist.all_reduce(torch.ones(1))  # hangs if a rank takes fewer steps
            if len(steps) == 2 and case.get("reweight", {}).get(str(dist.get_rank())) is not None:
                loader.reweight(**case["reweight"][str(dist.get_rank())])
            if len(steps) == 2 and "look_seconds" in case:
                dist.barrier()
            if len(steps) == case.get("stop"):
                break
        proof = loader.epoch_proof()
        found = {"steps": steps, "state": loader.state_dict(), "proof": str(proof), "ok": proof.ok, "len": len(loader)}
        return {**found, "packs": packs}


def _streaming(case):
    from torch.utils.data import DataLoader

    import wds_tools as wt

    dataset = wt.StreamingDataset(case["dataset"], **_options(case))
    loader = DataLoader(dataset, batch_size=case["batch"], num_workers=case.get("workers", 0))
    return {"steps": [batch.key for batch in loader]}


if __name__ == "__main__":
    main()

"""Test program that starts one process per rank of torch.distributed (gloo), as torchrun does.

It reads test cases from standard input, one JSON object per line, and answers each with the path of a file that has
the results of all ranks as a JSON list, or the error. torch is imported once, before all processes are forked: this
takes longer than most test cases.
"""

from __future__ import annotations

import functools
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import traceback
from contextlib import suppress
from pathlib import Path


def run_ranks(**case):
    """Run a test case; return the results of each rank: keys per step, proof, state, error."""
    case = {key: str(value) if isinstance(value, Path) else value for key, value in case.items()}
    with tempfile.NamedTemporaryFile("r") as output:
        request = {"case": case, "environment": dict(os.environ), "output": output.name}
        program = _program()
        program.stdin.write(json.dumps(request) + "\n")
        program.stdin.flush()
        status = program.stdout.readline()
        text = output.read()
    assert status == "0\n", text
    return json.loads(text)


@functools.cache
def _program():
    """Start this file as a program. It ends with this process, when its standard input is closed."""
    return subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def serve():
    """Run the test cases of standard input, each in a process of its own."""
    import wds_tools as wt  # noqa: F401 - imported before the fork
    import wds_tools.loading.loader  # noqa: F401

    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if not child:
            os.environ.clear()
            os.environ.update(request["environment"])
            status = 1
            try:
                with Path(request["output"]).open("w") as output:
                    os.dup2(output.fileno(), 2)
                    results = main(request["case"])
                    output.truncate(0)
                    output.seek(0)
                    json.dump(results, output)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n")
        sys.stdout.flush()


def free_port():
    """Return a free port. It is not an ephemeral port, so connections of other tests do not take it meanwhile."""
    while True:
        with socket.socket() as free, suppress(OSError):
            free.bind(("127.0.0.1", random.randrange(20_000, 32_000)))
            return free.getsockname()[1]


def main(case):
    """Run a test case and return the results of its ranks."""
    world = case["world"]
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()), WORLD_SIZE=str(world))
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for rank in range(world):
            child = os.fork()
            if not child:
                os.environ["RANK"] = str(rank)
                Path(folder, str(rank)).write_text(json.dumps(_rank(case)))
                os._exit(0)
            children.append(child)
        codes = [os.waitpid(child, 0)[1] for child in children]
        assert codes == [0] * world, codes
        return [json.loads(Path(folder, str(rank)).read_text()) for rank in range(world)]


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

    with wt.make_loader(case["dataset"], num_workers=case.get("workers", 0), **_options(case)) as loader:
        if "state" in case:
            loader.load_state_dict(case["state"])
        steps = []
        for batch in loader:
            valid = batch.valid.tolist() if "valid" in batch._fields else [True] * len(batch.key)
            steps.append([key for key, ok in zip(batch.key, valid, strict=True) if ok])
            if case.get("lockstep", True):
                dist.all_reduce(torch.ones(1))  # hangs if a rank takes fewer steps
            if len(steps) == case.get("stop"):
                break
        proof = loader.epoch_proof()
        return {"steps": steps, "state": loader.state_dict(), "proof": str(proof), "ok": proof.ok, "len": len(loader)}


def _streaming(case):
    from torch.utils.data import DataLoader

    import wds_tools as wt

    dataset = wt.StreamingDataset(case["dataset"], **_options(case))
    loader = DataLoader(dataset, batch_size=case["batch"], num_workers=case.get("workers", 0))
    return {"steps": [batch.key for batch in loader]}


if __name__ == "__main__":
    serve()

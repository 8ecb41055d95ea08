"""Commands that call a function for each shard: in this process, in worker processes, and on a Ray cluster."""

import os
import shutil
from pathlib import Path

import pytest
from folders import contents

import wds_tools as wt
from wds_tools.errors import OptionError, ShardError, WorkerError
from wds_tools.packing.engines import Engine, engine_for, in_order


def where(common, argument, advance):
    """Return the process that this is called in, what it has opened, and the argument."""
    common.append(argument)
    advance(1, 10 * argument)
    return os.getpid(), len(common), argument


def fails(_common, argument, _advance):
    raise ShardError("is damaged", shard=f"shard-{argument:06d}.tar", offset=512)


def dies(_common, _argument, _advance):
    os.kill(os.getpid(), 9)


def run(engine, function, count):
    done = []
    with_parts = engine.run(function, [], ((n, n) for n in range(count)), advance=lambda *one: done.append(one))
    results = [result for _, result in in_order(with_parts)]
    return results, tuple(map(sum, zip(*done, strict=True)))


@pytest.fixture(scope="module")
def packed(packed_few):
    """Return a small dataset, also to `packed_copy`."""
    return packed_few


@pytest.mark.parametrize("processes", [1, 2])
def test_results_are_in_order_and_each_process_gets_what_is_common_once(processes):
    results, done = run(Engine(processes=processes), where, 20)
    assert [argument for _, _, argument in results] == list(range(20))
    assert done == (20, 10 * sum(range(20)))
    pids = {pid for pid, _, _ in results}
    assert (os.getpid() in pids) == (processes == 1)
    assert sum(max(opened for pid, opened, _ in results if pid == one) for one in pids) == 20


def test_an_error_and_a_death_end_the_run(monkeypatch):
    with pytest.raises(ShardError, match="is damaged") as caught:
        run(Engine(processes=2), fails, 3)
    assert (caught.value.shard[:6], caught.value.offset) == ("shard-", 512)
    with pytest.raises(WorkerError, match="killed or ran out of memory: run the same command again, with fewer"):
        run(Engine(processes=2), dies, 3)


def test_the_number_of_processes_follows_the_size_and_is_at_most_the_number_of_shards(monkeypatch):
    monkeypatch.setattr("wds_tools.packing.engines.available_cores", lambda: 8)
    assert engine_for("local", None, size=10**6, shards=100).processes == 1
    assert engine_for("local", None, size=10**12, shards=100).processes == 8
    assert engine_for("local", 16, size=10**6, shards=10).processes == 10
    for wrong in ({"name": "steam", "workers": None}, {"name": "local", "workers": 0}):
        with pytest.raises(OptionError, match=r"engine='steam'; allowed|workers=0"):
            engine_for(**wrong, size=1, shards=1)


@pytest.fixture
def engines(monkeypatch):
    """Return the list of engines that commands use from now on."""
    used = []
    original = Engine.run
    monkeypatch.setattr(
        Engine, "run", lambda self, *given, **named: used.append(self) or original(self, *given, **named)
    )
    return used


def test_verify_with_processes_finds_the_damage_that_one_process_finds(packed_copy, engines):
    shards = sorted(packed_copy.glob("*.tar"))
    assert len(shards) > 3
    for shard in (shards[2], shards[0]):
        data = bytearray(shard.read_bytes())
        data[5000] ^= 1
        shard.write_bytes(data)
    shards[1].unlink()
    one, several = (wt.verify(packed_copy, workers=workers) for workers in (1, 2))
    assert [engine.processes for engine in engines] == [1, 2]
    assert one.damaged_shards == [shard.name for shard in shards[:3]]
    assert {**one.to_dict(), "seconds": 0} == {**several.to_dict(), "seconds": 0}


def test_index_and_add_fields_with_processes_write_the_bytes_of_one(packed, tmp_path, engines):
    folders = [tmp_path / f"{workers}" for workers in (1, 2)]
    keys = [key for shard in range(3) for key in wt_keys(packed, shard)]
    for workers, folder in enumerate(folders, 1):
        folder.mkdir()
        for shard in packed.glob("*.tar"):
            shutil.copy(shard, folder)
        wt.index_shards(f"{folder}/*.tar", workers=workers)
        wt.add_fields(folder, ({"__key__": key, "txt": f"a photo of {key}"} for key in keys), workers=workers)
    assert {engine.processes for engine in engines[: len(engines) // 2]} == {1}
    assert {engine.processes for engine in engines[len(engines) // 2 :]} == {2}
    assert contents(folders[0]) == contents(folders[1])
    assert wt.verify(folders[1]).ok


def wt_keys(folder, shard):
    from wds_tools.reading.opening import open_shards

    return open_shards(folder).index(shard).keys


@pytest.mark.torture
def test_tasks_of_reshard_write_the_bytes_of_one_process(packed, tmp_path):
    whole = wt.reshard(packed, tmp_path / "whole", shard_bytes="500kB")
    for index in (1, 0):
        part = wt.reshard(packed, tmp_path / "dst", shard_bytes="500kB", task=(index, 2))
        assert not part.complete
        assert 0 < len(part.manifest.shards) < len(whole.manifest.shards)
    wt.reshard(packed, tmp_path / "dst", shard_bytes="500kB", finish=True)
    assert contents(tmp_path / "dst") == contents(tmp_path / "whole")


def test_options_for_a_cluster_are_checked(packed, tmp_path):
    with pytest.raises(OptionError, match="num_cpus=2 needs engine='ray'"):
        wt.reshard(packed, tmp_path / "dst", num_cpus=2)
    with pytest.raises(OptionError, match=r"in_place=True\) with engine"):
        wt.reshard(packed, in_place=True, images="crop-ready", engine="ray")
    for call in (wt.verify, lambda folder, **given: wt.index_shards(f"{folder}/*.tar", **given)):
        with pytest.raises(OptionError, match="engine='steam'; allowed are 'local', 'ray'"):
            call(packed, engine="steam")
    with pytest.raises(OptionError, match="engine='steam'; allowed are 'local', 'ray'"):
        wt.add_fields(packed, Path("captions.csv"), engine="steam")

"""Random configurations of loaders, compared with an order that this file computes from the documented promises.

An epoch has each selected sample once, in the stored order without shuffling. Step s of all ranks together has the
samples s * G to (s + 1) * G - 1 of one sequence, where G is the global batch size. The sequence does not depend on
ranks, workers and batch size, and a state resumes it exactly with any of them. The samples of a dataset come from
Python's tarfile.
"""

import random
import tarfile

import pytest

import wds_tools as wt


@pytest.fixture(scope="module")
def stored(few):
    """Return the keys and labels of all samples, in the order of the shards."""
    found = {}
    for path in sorted(few.glob("*.tar")):
        with tarfile.open(path) as tar:
            for member in tar:
                key, _, kind = member.name.partition(".")
                if kind == "cls":
                    found[key] = int(tar.extractfile(member).read())
    return found


def steps_of(dataset, world, batch, epochs, *, states=(), num_workers=0, tail="mask", **options):
    """Return for each step the keys of all ranks, and the state of rank 0 after each step."""
    ranks, saved = [], []
    for rank in range(world):
        options.update(batch_size=batch, rank=rank, world_size=world, num_workers=num_workers, tail=tail)
        with wt.make_loader(dataset, fields=("__key__",), **options) as loader:
            for state in states:
                loader.load_state_dict(state)
            steps = []
            for _ in range(epochs):
                for part in loader:
                    valid = part.valid.tolist() if tail == "mask" else [True] * len(part[0])
                    steps.append([key for key, is_valid in zip(part[0], valid, strict=True) if is_valid])
                    saved += [loader.state_dict()] if rank == 0 else []
            ranks.append(steps)
    assert len({len(steps) for steps in ranks}) == 1  # as many steps for all ranks
    return [sorted(key for steps in ranks for key in steps[number]) for number in range(len(ranks[0]))], saved


def sliced(sequence, size, *, dropped=False):
    """Return the sorted keys of each step of an epoch."""
    steps = [sorted(sequence[start : start + size]) for start in range(0, len(sequence), size)]
    return steps[:-1] if dropped and len(steps[-1]) < size else steps


def check(number, dataset, stored):
    rng = random.Random(number)
    options = {
        "seed": rng.randrange(99),
        "shuffle": rng.choice([False, True, 5, 30, 1000]),
        "lanes": rng.randint(1, 3),
    }
    selected = list(stored)
    if rng.random() < 0.3:
        labels = rng.sample(range(8), 5)
        options["where"] = f"label in ({', '.join(map(str, labels))})"
        selected = [key for key in selected if stored[key] in labels]
    if rng.random() < 0.3:
        banned = set(rng.sample(selected, 3))
        options["ban"] = sorted(banned)
        selected = [key for key in selected if key not in banned]
    world, batch, workers = rng.randint(1, 4), rng.randint(1, 6), 2 if rng.random() < 0.1 else 0
    one_by_one = [keys[0] for keys in steps_of(dataset, 1, 1, 2, **options)[0]]
    epochs = [one_by_one[: len(selected)], one_by_one[len(selected) :]]
    assert [sorted(epoch) for epoch in epochs] == [sorted(selected)] * 2
    if not options["shuffle"] and options["lanes"] == 1:
        assert epochs == [selected] * 2
    tail = rng.choice(["drop", "mask"])
    expected = [step for epoch in epochs for step in sliced(epoch, world * batch, dropped=tail == "drop")]
    steps, states = steps_of(dataset, world, batch, 2, num_workers=workers, tail=tail, **options)
    assert steps == expected
    of_first = len(sliced(epochs[0], world * batch, dropped=tail == "drop"))
    taken = rng.randint(1, of_first) if tail == "mask" else rng.randint(1, max(1, of_first - 1))
    if taken == of_first:
        return
    world, again = rng.randint(1, 4), rng.randint(1, 6)
    rest = epochs[0][taken * len(expected[0]) :]
    steps, _ = steps_of(dataset, world, again, 1, states=[states[taken - 1]], **options)
    assert steps == sliced(rest, world * again)


@pytest.mark.parametrize("number", range(20))
def test_a_random_configuration_has_the_documented_order(number, few, stored):
    check(number, few, stored)


@pytest.mark.torture
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("chunk", [0, *(pytest.param(chunk, marks=pytest.mark.night) for chunk in range(1, 6))])
def test_many_random_configurations_have_the_documented_order(chunk, few, stored):
    for number in range(100 + 50 * chunk, 150 + 50 * chunk):
        check(number, few, stored)

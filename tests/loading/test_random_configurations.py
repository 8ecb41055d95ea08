"""Random configurations of loaders, compared with orders that this file computes from the documented promises.

A sequence of rows determines all steps: step s of all ranks together has the rows s * G to (s + 1) * G - 1, where G is
the global batch size. It does not depend on ranks, workers and batch size, and a state resumes it exactly with any of
them. With `Buckets`, the batch size of a rank is the size of the groups, and a run resumes with a divisor of it.

What an epoch has is compared with what `where=`, `class_weights=`, `ban=`, `Mixture` and `Buckets` promise. The samples
of a dataset come from Python's tarfile, and their sizes from Pillow.
"""

import io
import math
import random
import tarfile
from collections import Counter
from dataclasses import dataclass

import pytest
from PIL import Image, ImageOps

import wds_tools as wt

SIZES = [(16, 16), (12, 20), (20, 12)]  # height and width
KINDS = ["one", "class_weights", "first_exhausted", "all_exhausted", "epoch_length"]


@dataclass(frozen=True)
class Sample:
    """A stored sample: its class, its bucket by the nearest aspect ratio, and its dataset in a mixture."""

    label: int
    bucket: int
    part: int


def read(shards, part):
    """Return the samples of shards by key, in their order."""
    found, members = {}, {}
    for path in shards:
        with tarfile.open(path) as tar:
            for member in tar:
                key, _, kind = member.name.partition(".")
                members.setdefault(key, {})[kind] = tar.extractfile(member).read()
    for key, fields in members.items():
        with Image.open(io.BytesIO(fields["jpg"])) as image:
            width, height = ImageOps.exif_transpose(image).size
        distances = [abs(math.log(width / height) - math.log(w / h)) for h, w in SIZES]
        found[key] = Sample(int(fields["cls"]), distances.index(min(distances)), part)
    return found


@pytest.fixture(scope="module")
def parts(few):
    """Return two datasets, which are lists of shards: their names, and the samples of both by key."""
    shards = sorted(few.glob("*.tar"))
    both = [shards[: len(shards) // 3], shards[len(shards) // 3 :]]
    assert all(both)
    return [list(map(str, names)) for names in both], [read(names, part) for part, names in enumerate(both)]


def steps_of(dataset, world, batch, epochs, *, states=(), num_workers=0, tail="mask", **options):
    """Return the rows of all ranks of each step, by epoch, with None for invalid ones; and rank 0's states.

    The rows of a rank are in their order, those of different ranks are not.
    """
    ranks, saved = [], []
    view = options.pop("view", None)
    fields = ("__key__",) if view is None else ("__key__", "image")
    for rank in range(world):
        options.update(batch_size=batch, rank=rank, world_size=world, num_workers=num_workers, tail=tail)
        with wt.make_loader(dataset, fields=fields, view=view, **options) as loader:
            for state in states:
                loader.load_state_dict(state)
            found = []
            for _ in range(epochs):
                found.append([])
                for part in loader:
                    valid = part.valid.tolist() if tail == "mask" else [True] * len(part[0])
                    found[-1].append([key if ok else None for key, ok in zip(part[0], valid, strict=True)])
                    if view is not None:
                        assert tuple(part.image.shape[2:]) in SIZES
                    saved += [loader.state_dict()] if rank == 0 else []
            ranks.append(found)
    assert len({tuple(map(len, found)) for found in ranks}) == 1  # as many steps for all ranks
    epochs = [
        [[key for batch in step for key in batch] for step in zip(*found, strict=True)]
        for found in zip(*ranks, strict=True)
    ]
    return epochs, saved


def flat(steps):
    return [row for step in steps for row in step]


def valid_keys(rows):
    return sorted(row for row in rows if row is not None)


def sliced(rows, size, *, dropped=False):
    """Return the sorted keys of each step."""
    steps = [rows[start : start + size] for start in range(0, len(rows), size)]
    steps = [step for step in steps if not dropped or len(step) == size]
    return [valid_keys(step) for step in steps]


def grouped(keys, samples, size):
    """Return rows in groups of one bucket: complete ones in the order in which they are complete, and then the rest."""
    open_groups, rows = {}, []
    for key in keys:
        group = open_groups.setdefault(samples[key].bucket, [])
        group.append(key)
        if len(group) == size:
            rows += open_groups.pop(samples[key].bucket)
    rest = [group + [None] * (size - len(group)) for _, group in sorted(open_groups.items())]
    return rows + flat(rest)


def check_balanced(epoch, selected, weights):
    """Check that each class has its share, and that its samples come equally often, each to within one sample."""
    counts, of_class = Counter(epoch), Counter(sample.label for sample in selected.values())
    assert len(epoch) == len(selected)
    shares = {label: number * weights[label] for label, number in of_class.items()}
    for label, share in shares.items():
        each = [counts[key] for key, sample in selected.items() if sample.label == label]
        assert abs(sum(each) - len(selected) * share / sum(shares.values())) < 1
        assert max(each) - min(each) <= 1
    assert {*counts} <= {*selected}


def check_mixture(epochs, selected, shares, kind, length):
    """Check the proportions at every position, the passes through each dataset, and the ends of epochs."""
    passes = [[], []]
    ids = [[key for key, sample in selected.items() if sample.part == part] for part in (0, 1)]
    for epoch in epochs if kind != "epoch_length" else [flat(epochs)]:
        part_of = [selected[key].part for key in epoch]
        for position in range(1, len(epoch) + 1):
            exact = [position * share / sum(shares) for share in shares]
            assert all(abs(part_of[:position].count(part) - exact[part]) < 1 for part in (0, 1))
        of_part = [[key for key in epoch if selected[key].part == part] for part in (0, 1)]
        for part in (0, 1):
            found = [
                of_part[part][start : start + len(ids[part])] for start in range(0, len(of_part[part]), len(ids[part]))
            ]
            assert all(sorted(one) == sorted(ids[part]) for one in found[:-1])  # complete passes
            assert all(len({*one}) == len(one) and {*one} <= {*ids[part]} for one in found)
            passes[part] += found
        exhausted = [len(of_part[part]) >= len(ids[part]) for part in (0, 1)]
        following = part_of[len(epoch) % sum(shares)] if len(epoch) >= sum(shares) else None
        if kind == "first_exhausted":
            assert all(len(of_part[part]) <= len(ids[part]) for part in (0, 1))
            assert any(exhausted)
            assert following is None or len(of_part[following]) == len(ids[following])
        if kind == "all_exhausted":
            assert all(exhausted)
            assert len(of_part[part_of[-1]]) == len(ids[part_of[-1]])  # it has just been exhausted
    if kind == "epoch_length":
        assert [len(epoch) for epoch in epochs] == [length] * len(epochs)


def check(number, names, both):
    rng = random.Random(number)
    kind = KINDS[number % len(KINDS)]
    samples = {key: sample for part in both for key, sample in part.items()}
    options = {
        "seed": rng.randrange(99),
        "shuffle": rng.choice([False, True, 5, 30, 1000]),
        "lanes": rng.randint(1, 3),
    }
    selected = samples
    if rng.random() < 0.4:
        labels = rng.sample(range(8), 6)
        options["where"] = f"label in ({', '.join(map(str, labels))})"
        selected = {key: sample for key, sample in samples.items() if sample.label in labels}
    dataset, epochs = check_epochs(rng, kind, names, selected, options)
    if rng.random() < 0.4:
        banned = set(rng.sample(sorted(selected), 3))
        options["ban"] = sorted(banned)
        epochs = [[key for key in epoch if key not in banned] for epoch in epochs]
    world, batch, workers = rng.randint(1, 4), rng.randint(1, 6), 2 if rng.random() < 0.1 else 0
    if number % 3 == 0:
        options["view"] = wt.Buckets(SIZES)
        rows = check_buckets(dataset, options, epochs, samples, batch)
    else:
        rows = [flat(steps) for steps in steps_of(dataset, 1, 1, 2, **options)[0]]
        assert rows == epochs
    check_steps(rng, dataset, options, epochs, rows, samples, (world, batch, workers))


def check_epochs(rng, kind, names, selected, options):
    """Check what two epochs have without bans and buckets; return the dataset, and the epochs."""
    dataset, shares, length = flat(names), [rng.randint(1, 3), rng.randint(1, 3)], rng.randint(20, 90)
    weights = [rng.choice([0.3, 1, 2, 5]) for _ in range(8)]
    if kind == "class_weights":
        options["class_weights"] = weights
    elif kind != "one":
        end = {"epoch_length": length} if kind == "epoch_length" else {"stop": kind}
        dataset = wt.Mixture(names, weights=shares, **end)
    epochs = [flat(steps) for steps in steps_of(dataset, 1, 1, 2, **options)[0]]
    assert not options["shuffle"] or epochs[0] != epochs[1]
    if kind == "class_weights":
        for epoch in epochs:
            check_balanced(epoch, selected, weights)
    elif kind != "one":
        check_mixture(epochs, selected, shares, kind, length)
    elif not options["shuffle"] and options["lanes"] == 1:
        assert epochs == [[*selected]] * 2
    else:
        assert [sorted(epoch) for epoch in epochs] == [sorted(selected)] * 2
    return dataset, epochs


def check_buckets(dataset, options, epochs, samples, size):
    """Check the groups of two epochs; return their rows."""
    rows = [flat(steps) for steps in steps_of(dataset, 1, size, 2, **options)[0]]
    assert [valid_keys(epoch) for epoch in rows] == [sorted(epoch) for epoch in epochs]
    for epoch in rows:
        groups = [epoch[start : start + size] for start in range(0, len(epoch), size)]
        assert all(len({samples[key].bucket for key in group if key}) == 1 for group in groups)
    if options["lanes"] == 1:
        assert rows == [grouped(epoch, samples, size) for epoch in epochs]
    return rows


def check_steps(rng, dataset, options, base, rows, samples, topology):
    """Check the steps of a run of two epochs, and of one that resumes it in the first."""
    world, batch, workers = topology
    has_buckets, size = "view" in options, world * batch
    tail, kept = "mask", rows
    complete = [epoch[: epoch.index(None) // batch * batch] if None in epoch else epoch for epoch in rows]
    if min(map(len, complete)) >= size and rng.random() < 0.5:
        tail, kept = "drop", complete
    expected = [sliced(epoch, size, dropped=tail == "drop") for epoch in kept]
    found, states = steps_of(dataset, world, batch, 2, num_workers=workers, tail=tail, **options)
    assert [[valid_keys(step) for step in steps] for steps in found] == expected
    if len(expected[0]) == 1:
        return
    taken = rng.randint(1, len(expected[0]) - 1)
    delivered, rest = rows[0][: taken * size], rows[0][taken * size :]
    world, again = rng.randint(1, 4), rng.randint(1, 6)
    if has_buckets:
        again = rng.choice([divisor for divisor in range(1, batch + 1) if batch % divisor == 0])
    left = sorted({*rest} - {None})
    if len(left) > 3 and rng.random() < 0.5 and (not has_buckets or options["lanes"] == 1):
        banned = rng.sample(left, 3)
        options = {**options, "ban": [*options.get("ban", ()), *banned]}
        if has_buckets:  # the samples that are left are grouped again
            rest = list(base[0])
            for key in valid_keys(delivered):
                rest.remove(key)
        rest = [key for key in rest if key not in banned]
        rest = grouped(rest, samples, batch) if has_buckets else rest
    found, _ = steps_of(dataset, world, again, 1, states=[states[taken - 1]], **options)
    assert [valid_keys(step) for step in found[0]] == sliced(rest, world * again)


@pytest.mark.parametrize("number", [*range(12), *(pytest.param(n, marks=pytest.mark.torture) for n in range(12, 20))])
@pytest.mark.torture_except("1", "2", "4", "7", "11")
def test_a_random_configuration_has_the_documented_order(number, parts):
    check(number, *parts)


@pytest.mark.torture
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("chunk", [0, *(pytest.param(chunk, marks=pytest.mark.night) for chunk in range(1, 6))])
def test_many_random_configurations_have_the_documented_order(chunk, parts):
    for number in range(100 + 50 * chunk, 150 + 50 * chunk):
        check(number, *parts)

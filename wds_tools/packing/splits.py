"""`pack_splits` packs one source as several datasets: random shares, or its folders ``train/``, ``val/``, ``test/``."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wds_tools.errors import LabelError, OptionError, SourceError
from wds_tools.format.class_notes import notes_on_similar
from wds_tools.format.label import Classes, quoted
from wds_tools.packing.card import split_card
from wds_tools.packing.config import PackOptions, SplitOptions
from wds_tools.packing.estimate import packs_deep
from wds_tools.packing.keep_together import clusters_of_inputs
from wds_tools.packing.output_folder import open_folder
from wds_tools.packing.packer import PackReport, check_place, open_input, pack_listing
from wds_tools.packing.preview import account_lines, show_account
from wds_tools.packing.remote_destination import parse_destination
from wds_tools.packing.run import check_labels, check_strict, list_inputs, show_notes
from wds_tools.signatures import takes
from wds_tools.sources.base import Listing, Source
from wds_tools.sources.detect import open_splits
from wds_tools.sources.file_names import SPLIT_OF, shown_path
from wds_tools.sources.inputs import Inputs
from wds_tools.sources.label_choice import names_by_number
from wds_tools.storage import join
from wds_tools.storage.commit import write_errors
from wds_tools.wording import counted

FOLDERS = "folders"
_INVERSE_GOLDEN = (5**0.5 - 1) / 2
_SPLIT_STREAM = 2  # gives this use of the seed its own random numbers
_SHARE_TOLERANCE = 0.05
_FOLD = re.compile(r"(?<!\d)(?<!part)(?<!shard)(\d\d?)\.[^\d]*$")  # in train_1.tar, not in train-00000-of-00002.tar
_MOST_FOLDS = 10
_log = logging.getLogger("wds_tools")


@takes(SplitOptions)
def pack_splits(given: SplitOptions) -> dict[str, PackReport]:  # noqa: D417 - callers pass the fields of the options
    """Pack a source as several datasets, ``dst/train``, ``dst/val`` and so on, with the same class numbers.

    To continue an interrupted run, repeat the same call.

    `pack` describes the arguments that are not listed here.

    Args:
        dst: Folder or URL in which each split gets a folder with its name.
        split: The share of each split, as {"train": 0.9, "val": 0.1} or "train=0.9,val=0.1". Shares add up to 1; they
            are drawn at random with ``seed``, and every class is divided in the same shares. Or "folders", if ``src``
            has a folder for each split, with names such as train, val and test.
        seed: Seed of the draw and of the one-time shuffle.
        keep_together: "hash" puts similar images, such as frames of a video or copies of another size, into one
            split: images whose perceptual hashes differ in at most 6 of 64 bits. The name of a column of a table, or
            of an entry of JSON, such as "patient", puts all records with the same value into one split.
            Each image is then read once more, before packing, and for "hash" decoded. The shares of images are as
            exact as the clusters allow. Only with shares.
        strict: Raise an error if any file cannot be packed, as for `pack`. If the listing already shows such a file,
            no split is packed. If one appears only during packing, the splits before it are already packed.
        fresh: Remove what an earlier pack left in the folders of the splits, and start over.
        dry_run: Write nothing, as for `pack`; each report has a ``preview`` of its split.

    Returns:
        A report for each split, by its name. With shares, files that the listing skipped are in the first report.

    Raises:
        OptionError: An invalid argument, such as shares that do not add up to 1.
        SourceError: A split would be empty; ``src`` has no folders of splits or contains nothing to pack; or, with
            ``strict``, a file cannot be packed.
        DestinationError: A folder in ``dst`` contains something else, is in use, or its disk is full.
        StoreError: The storage at a URL does not respond, or the package for it is not installed.
        WorkerError: A worker process died.
    """
    src, location, options = given.src, parse_destination(given.dst), PackOptions.of(given)
    shares = parse_shares(given.split)
    source: Source
    if shares is None:
        if given.keep_together is not None:
            raise OptionError(
                "keep_together= with split='folders'; it requires shares, such as train=0.9,val=0.1. To find images of "
                "several splits, run `wds-tools doctor` on the packed splits"
            )
        parts = _list_split_folders(src, location, options)
        shown = list(parts.values())
    else:
        source = open_input(src, location, options)
        listing = list_inputs(source, options.progress)
        cluster = None
        if given.keep_together is not None:
            listing, cluster = clusters_of_inputs(source, listing, given.keep_together, progress=options.progress)
        shown = [(source, listing)]
        parts = {name: (source, part) for name, part in draw_splits(listing, shares, options.seed, cluster).items()}
    for source, listing in () if options.dry_run else shown:
        show_account(account_lines(source, listing), progress=options.progress)
    check_strict(list(parts.values()), options)
    # One decision for all splits, however small one of them is.
    deep = packs_deep([(source, listing.inputs) for source, listing in parts.values()], options)
    reports = {
        name: pack_listing(source, listing, parse_destination(join(str(location), name)), options, deep=deep)
        for name, (source, listing) in parts.items()
    }
    if not options.dry_run:
        with write_errors(location, "run the same command again"):
            new_card = split_card({name: report.manifest for name, report in reports.items()})
            open_folder(str(location), options.remote).write_card(new_card)
    return reports


def parse_shares(split: str | Mapping[str, float]) -> dict[str, Fraction] | None:
    """Return the share of each split, or None for "folders".

    >>> parse_shares("train=0.9,val=0.1")
    {'train': Fraction(9, 10), 'val': Fraction(1, 10)}
    """
    if split == FOLDERS:
        return None
    try:
        pairs = split.items() if isinstance(split, Mapping) else [part.partition("=")[::2] for part in split.split(",")]
        shares = {str(name).strip(): Fraction(str(share)) for name, share in pairs}
    except (AttributeError, ValueError, ZeroDivisionError):
        shares = {}
    bad = [name for name in shares if not name.replace("-", "").replace("_", "").isalnum()]
    if not shares or bad or min(shares.values()) <= 0 or sum(shares.values()) != 1:
        raise OptionError(
            f"split={split!r}; allowed are names with shares that add up to 1, such as train=0.9,val=0.1; "
            f"or {FOLDERS!r}"
        )
    return shares


def draw_splits(
    listing: Listing, shares: Mapping[str, Fraction], seed: int, cluster: NDArray[np.int64] | None = None
) -> dict[str, Listing]:
    """Draw splits at random. Every class is divided in the same shares, give or take one or two inputs.

    Args:
        listing: All inputs.
        shares: Share of each split by its name; they add up to 1.
        seed: Seed of the draw.
        cluster: int64 [n], the cluster of each input; all inputs of a cluster get into the same split. None: each is
            alone.
    """
    names = list(shares)
    everything = Inputs.of(listing.inputs)
    random = np.random.default_rng([seed, _SPLIT_STREAM]).permutation(len(everything))
    labels = everything.numbers("label")
    order = random[np.argsort(labels[random], kind="stable")]  # sorted by class, in random order within each class
    split_of = np.empty(len(order), np.int64)
    # Input i of this order goes to the split whose range [start, stop) contains i / golden ratio mod 1. These fractions
    # are spread evenly over any run of inputs, so every class is divided in the given shares, small classes too as far
    # as possible.
    spread = (np.arange(len(order)) * _INVERSE_GOLDEN) % 1.0
    bounds = np.cumsum([float(share) for share in shares.values()])[:-1]
    split_of[order] = np.searchsorted(bounds, spread, side="right")
    if cluster is not None and len(np.unique(cluster)) < len(cluster):
        split_of[order] = _draw_clusters(cluster[order], labels[order], list(map(float, shares.values())))
    parts = {}
    for position, name in enumerate(names):
        inputs = everything.chosen(np.flatnonzero(split_of == position))
        if not inputs:
            raise SourceError(
                f"split {name!r} gets none of {len(listing.inputs):,} records: give it a larger share, or omit it"
            )
        skipped = listing.skipped if position == 0 else []
        account = listing.account.of_part(len(inputs), (skip.reason for skip in skipped))
        account.options = {**account.options, "share": name}  # `append` leaves out the records of other shares
        parts[name] = replace(listing, inputs=inputs, skipped=skipped, account=account)
    if cluster is not None:
        _warn_of_shares(parts, shares)
    return parts


def _draw_clusters(cluster: NDArray[np.int64], labels: NDArray[np.int64], shares: Sequence[float]) -> NDArray[np.int64]:
    """Return the split of each input, the same for all of a cluster: int64 [n].

    Clusters, large ones first, go to the split that lacks most of its share of all inputs and of those of their class.
    """
    _, first, cluster_of_input, sizes = np.unique(cluster, return_index=True, return_inverse=True, return_counts=True)
    targets = np.array(shares)
    lacks = np.zeros(len(targets))
    lacks_of = {label: np.zeros(len(targets)) for label in labels[first].tolist()}
    splits, is_empty = np.empty(len(sizes), np.int64), np.ones(len(targets), bool)
    for left, i in zip(range(len(sizes), 0, -1), np.lexsort((first, -sizes)).tolist(), strict=True):
        of_class = lacks_of[int(labels[first[i]])]
        lacks += sizes[i] * targets
        of_class += sizes[i] * targets
        score = np.where(is_empty | (left > is_empty.sum()), lacks + of_class, -np.inf)  # no split stays empty
        splits[i] = split = int(np.argmax(score))
        is_empty[split] = False
        lacks[split] -= sizes[i]
        of_class[split] -= sizes[i]
    split_of_input: NDArray[np.int64] = splits[cluster_of_input]
    return split_of_input


def _warn_of_shares(parts: Mapping[str, Listing], shares: Mapping[str, Fraction]) -> None:
    """Warn if splits have other shares than wanted, because clusters are large."""
    total = sum(len(part.inputs) for part in parts.values())
    actual = {name: len(part.inputs) / total for name, part in parts.items()}
    if any(abs(actual[name] - float(share)) > _SHARE_TOLERANCE for name, share in shares.items()):
        named = ", ".join(f"{name} {share:.0%} (requested {float(shares[name]):.0%})" for name, share in actual.items())
        _log.warning("the shares are not exact, because many images are kept together: %s", named)


def _list_split_folders(src: Any, dst: Path | str, options: PackOptions) -> dict[str, tuple[Source, Listing]]:
    """Return source and listing of each split's folder. Class numbers are the same in all of them."""
    check_place(src, dst, options)
    sources = open_splits(src, kind=options.kind, options=options.source)
    listed = {name: list_inputs(source, options.progress, is_split=True) for name, source in sources.items()}
    check_labels(str(src), listed.values(), options.names)
    labelled = {name: listing for name, listing in listed.items() if listing.has_labels}
    if options.names is None and any(listing.label_classes for listing in labelled.values()):
        classes = _common_classes(str(src), labelled)
        # A split whose labels are numbers is listed again, to check that they are among these classes.
        again = open_splits(src, kind=options.kind, options=replace(options, classes=classes).source)
        for name, listing in labelled.items():
            if listing.label_classes:
                listed[name] = listing.with_classes(classes)
            else:
                sources[name] = again[name]
                listed[name] = list_inputs(again[name], options.progress, is_split=True)
    listed = _of_one_type(str(src), listed)
    for name, notes in [*_notes_on_new_classes(listed).items(), *_notes_on_folds(listed).items()]:
        listed[name].account.notes += notes
        show_notes(sources[name], notes)
    return {name: (source, listed[name]) for name, source in sources.items()}


def _notes_on_new_classes(listed: Mapping[str, Listing]) -> dict[str, list[str]]:
    """Return notes on splits without labels, and on classes of which the largest split has no sample."""
    used = {split: classes for split, listing in listed.items() if (classes := _used_classes(listing))}
    if not used:
        return {}
    largest = max(used, key=lambda split: len(listed[split].inputs))
    without = {split: [f"it has no labels, unlike the split {largest!r}"] for split in listed if split not in used}
    return without | {
        split: [
            f"{counted(len(new), 'class', 'classes')} without a sample in {largest!r}: {quoted(new)}",
            *notes_on_similar([*used[largest], *new]),
        ]
        for split, classes in used.items()
        if (new := [name for name in classes if name not in used[largest]])
    }


def _notes_on_folds(listed: Mapping[str, Listing]) -> dict[str, list[str]]:
    """Return a note if files of a split may be splits of their own, by the few numbers at the end of their names.

    Either all splits have the same numbers, like folds; or files of a test set have numbers, and another split has
    none.
    """
    files = {split: [file.path.name for file in listing.files] for split, listing in listed.items()}
    numbers = [sorted(match[1] for name in names if (match := _FOLD.search(name))) for names in files.values()]
    first, *others = numbers
    if others and all(some == first for some in others) and 1 < len(set(first)) == len(first) <= _MOST_FOLDS:
        shown = quoted(names[0] for names in files.values())
        how = "if these are folds, each split has all images: pack one file at a time"
        return {next(iter(files)): [f"files of all splits have the same numbers, such as {shown}: {how}"]}
    if not any(len(names) == 1 and not some for names, some in zip(files.values(), numbers, strict=True)):
        return {}
    how = "are parts of one split, by their names: pack one at a time if they are not"
    return {
        split: [f"{quoted(names)} {how}"]
        for (split, names), some in zip(files.items(), numbers, strict=True)
        if 1 < len(set(some)) == len(names) <= _MOST_FOLDS and SPLIT_OF.get(split) not in (None, "train")
    }


def _used_classes(listing: Listing) -> list[str]:
    """Return the classes that have samples, sorted: their names, or their numbers as text if they have no names."""
    labels = ((entry.label,) if entry.labels is None else entry.labels for entry in listing.inputs)
    numbers = sorted({number for some in labels for number in some if number is not None})
    names = listing.label_classes
    return sorted(names[number] for number in numbers) if names else list(map(str, numbers))


def _common_classes(src: str, listed: Mapping[str, Listing]) -> Classes:
    """Return the classes of all splits that have labels. Classes that have a number in a split keep it."""
    named = {split: listing for split, listing in listed.items() if listing.label_classes}
    stated = {split: listing for split, listing in named.items() if listing.numbered_by != "order"}
    stated_names, problem = _stated_classes(stated)
    numbered = next((split for split in listed if split not in named), None)
    if numbered is not None and (problem or not stated):
        example = next(iter(stated or named))
        raise LabelError(
            f"{shown_path(src)}: the labels of split {numbered!r} are numbers ({_numbers_of(listed[numbered])}), those "
            f"of {example!r} are names ({quoted(named[example].label_classes[:2])}), and "
            f"{problem or 'no number is stated for a name'}: give the names of all classes by number (--classes, "
            "classes=), or write all labels as names"
        )
    if problem and any(listing.numbered_by == "records" for listing in stated.values()):
        raise LabelError(
            f"{shown_path(src)}: {problem}: correct the labels, or give the names of all classes by number (--classes, "
            "classes=)"
        )
    new = Classes.sorted(name for listing in named.values() for name in _names_by_number(listing).values())
    return Classes(dict.fromkeys([*stated_names, *new]))


def _stated_classes(listed: Mapping[str, Listing]) -> tuple[tuple[str, ...], str]:
    """Return the classes of splits that state their numbers, or no classes and why they contradict each other."""
    named: dict[int, tuple[str, str]] = {}  # number -> name and split
    numbers: dict[str, tuple[int, str]] = {}  # name -> number and split
    for split, listing in listed.items():
        for number, name in _names_by_number(listing).items():
            first_name, first = named.setdefault(number, (name, split))
            if first_name != name:
                return (), f"class {number} is {first_name!r} in {first!r} and {name!r} in {split!r}"
            same, first = numbers.setdefault(name, (number, split))
            if same != number:
                return (), f"class {name!r} is number {same} in {first!r} and number {number} in {split!r}"
    return names_by_number({number: name for number, (name, _) in named.items()}) or (), ""


def _names_by_number(listing: Listing) -> dict[int, str]:
    """Return the names of classes that have one; of records, numbers between others may have none."""
    has_gaps = listing.numbered_by == "records"
    names = enumerate(listing.label_classes)
    return {number: name for number, name in names if not (has_gaps and name == str(number))}


def _numbers_of(listing: Listing) -> str:
    """Return the first two class numbers of a listing, for a message."""
    labels = ((entry.label,) if entry.labels is None else entry.labels for entry in listing.inputs)
    numbers = sorted({number for some in labels for number in some if number is not None})
    return quoted(map(str, numbers[:2]))


def _of_one_type(src: str, listed: Mapping[str, Listing]) -> dict[str, Listing]:
    """Return the listings of splits with one label or several for each sample in all splits that have labels.

    Lists with 0 or 1 for each class are several labels if this is so in another split.
    """
    several = [split for split, listing in listed.items() if Inputs.of(listing.inputs).have_several_labels]
    single = [split for split, listing in listed.items() if listing.has_labels and split not in several]
    if not several:
        return dict(listed)
    if example := next((split for split in single if not listed[split].form.width), None):
        raise LabelError(
            f"{shown_path(src)}: the samples of split {example!r} have one label each, those of {several[0]!r} have a "
            "list of labels: write the labels of all splits as lists, or of none"
        )
    return {split: listing.with_several_labels() if split in single else listing for split, listing in listed.items()}

"""`wds-tools plan DATASET --state FILE --step N`: what a step of a training run saw, from its state."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from wds_tools.errors import OptionError, ResumeError
from wds_tools.format.manifest import order_fingerprint
from wds_tools.loading.explanation import StepExplanation
from wds_tools.loading.fields.base import FieldSpec
from wds_tools.loading.load_options import LoadOptions
from wds_tools.loading.request import OpenedDataset, open_dataset
from wds_tools.loading.samples.columns import fields_of_views
from wds_tools.options import RemoteOptions
from wds_tools.order import resuming
from wds_tools.order.history import History, find_step, with_planned
from wds_tools.order.saved_state import check_seal, whole_number
from wds_tools.reading.opening import open_shards
from wds_tools.reading.saved_arrays import read_ids
from wds_tools.reading.select import Choice
from wds_tools.reading.weights import WeightFinder, schedule_of_state

_KEYS = ("fingerprint", "epoch", "position", "seed", "window")  # by which a state of a loader is recognised
_MAX_DEPTH = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedStep:
    """A step of a run, and a file with the state of the run at another step.

    Attributes:
        file: JSON or a file of ``torch.save`` that contains the result of ``loader.state_dict()``.
        step: Number of the step, counted from the start of the run, or with ``epoch`` from the start of that epoch.
        rank: Only the samples of this rank; None takes the samples of all ranks.
    """

    file: Path
    step: int
    epoch: int | None = None
    rank: int | None = None

    def explain(
        self, dataset: str, choice: Choice, remote: RemoteOptions, further: Mapping[str, FieldSpec] | None = None
    ) -> StepExplanation:
        """Return what the step saw or will see.

        Raises:
            OptionError: The file has no state, or there is no such step.
            ResumeError: The state belongs to another dataset, or to other options.
        """
        state = _state_of(dataset, self.file, remote)
        check_seal(state)
        opened = _open(dataset, state, choice, remote, further or {})
        weights = WeightFinder(opened.shards, opened.order.plain, opened.recipe.seed)
        orders, cursor = resuming.resume(
            state,
            opened.order,
            prefix=opened.prefix,
            find_weights=weights,
            read_ids=read_ids,
            packed=opened.packed,
        )
        history = History()
        history.load_state_dict(state, cursor)
        if not history.sections:
            raise OptionError(
                f"{self.file} was saved before the first step, so it does not record batch size and number of ranks: "
                "save the state after a step, or call loader.explain() in your program"
            )
        if "schedule" in state:
            planned = weights.planned(schedule_of_state(state["schedule"]))
            orders = with_planned(orders, planned, history.sections[-1], cursor, history.steps)
        step = find_step(history.sections, orders, step=self.step, epoch=self.epoch, prefix=opened.prefix)
        return StepExplanation(step, opened.recipe, rank=self.rank)


def _open(
    dataset: str,
    state: Mapping[str, Any],
    choice: Choice,
    remote: RemoteOptions,
    further: Mapping[str, FieldSpec],
) -> OpenedDataset:
    """Open a dataset with the options of a state."""
    options = LoadOptions(
        dataset,
        batch_size=1,
        shuffle=state["window"] or False,
        seed=whole_number(state["seed"], "seed"),
        fields={**fields_of_views(state.get("views", {})), **further},
        where=choice.where,
        subset=choice.subset,
        class_weights=choice.class_weights,
        lanes=whole_number(state["lanes"], "lanes"),
        rank=0,
        world_size=1,
        storage_options=remote.storage_options,
    )
    return open_dataset(options)


def _state_of(dataset: str, path: Path, remote: RemoteOptions) -> dict[str, Any]:
    """Return the state of a loader of this dataset from a file."""
    states = dict(_states_in(_content_of(path), ()))
    if not states:
        raise OptionError(f"{path} has no state of a loader: save the result of loader.state_dict() in it")
    manifest = open_shards(dataset, remote=remote).manifest
    fitting = {
        name: state
        for name, state in states.items()
        if state["fingerprint"] == order_fingerprint(manifest.shards[: whole_number(state.get("shards", 0), "shards")])
    }
    if len(fitting) == 1 or len({json.dumps(state, sort_keys=True) for state in fitting.values()}) == 1:
        return next(iter(fitting.values()))
    if fitting:
        raise OptionError(
            f"{path} has several states of this dataset, {', '.join(fitting)}: save the state of the training loader "
            "as JSON in a separate file"
        )
    if any(isinstance(state["window"], list) for state in states.values()):
        raise OptionError(f"{path} has the state of a Mixture: call loader.explain() in your program")
    raise ResumeError(
        f"{path} has the state of a loader, but of another dataset: it is for the fingerprint "
        f"{', '.join(str(state['fingerprint']) for state in states.values())}, and {dataset} has "
        f"{order_fingerprint(manifest.shards)}"
    )


def _content_of(path: Path) -> Any:
    """Return the content of a JSON file or of a file of ``torch.save``. Code in the file is not run."""
    try:
        with path.open("rb") as file:
            is_json = file.read(1) in (b"{", b"[")
        if is_json:
            return json.loads(path.read_text())
    except OSError as error:
        raise OptionError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise OptionError(f"{path} is not JSON: {error}") from error
    try:
        return torch.load(path, weights_only=True, map_location="cpu", mmap=zipfile.is_zipfile(path))
    except Exception as error:  # torch's old format is a pickle, and any bytes may be read as its operations
        raise OptionError(
            f"{path} is neither JSON nor a file of torch.save with plain values and tensors: write "
            "json.dumps(loader.state_dict()) to a file"
        ) from error


def _states_in(value: Any, path: tuple[str, ...]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the states of loaders in nested dictionaries and lists, with their paths."""
    if isinstance(value, Mapping):
        if all(key in value for key in _KEYS):
            yield ".".join(path) or "the file", dict(value)
            return
        items = value.items()
    else:
        items = dict(enumerate(value)).items() if isinstance(value, list | tuple) and len(value) < 1000 else {}.items()
    if len(path) < _MAX_DEPTH:
        for name, item in items:
            yield from _states_in(item, (*path, str(name)))

"""Warnings about valid arguments that are probably a mistake point to the line of the user's program."""

import numpy as np
import preloaded
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision.transforms import v2

import wds_tools as wt
from wds_tools.loading import advice

IMAGE_LIST = "images will come as a list of tensors"


def make(dataset, **options):
    wt.make_loader(dataset, **{"batch_size": 4, "num_workers": 0, **options}).close()


@pytest.mark.parametrize("view", [None, wt.Resize(128)])
def test_a_warning_about_image_lists_contains_the_sizes_and_a_remedy(packed, view):
    with pytest.warns(
        UserWarning, match=rf"{IMAGE_LIST}: their sizes differ \(\d+x\d+ to \d+x\d+\).*Resize\(\(224, 224\)\)"
    ):
        make(packed, view=view)


def test_a_warning_about_image_lists_is_issued_for_unknown_sizes_too(packed):
    with pytest.warns(UserWarning, match=rf"{IMAGE_LIST}.*\(unknown\)"):
        make(wt.Mixture([packed, packed], weights=[1, 1]), view=None)


@pytest.mark.parametrize(
    "options",
    [
        {"view": wt.CenterCrop(24)},
        {"view": wt.Resize((24, 24))},
        {"view": None, "transform": v2.RandomCrop(24)},
        {"view": None, "fields": "label"},
        {"view": None, "batch_size": 1},
        {"view": None, "where": "width >= 1"},  # a condition may select images of one size
    ],
    ids=str,
)
def test_no_warning_if_images_may_be_one_tensor(packed, options):
    make(packed, **options)  # warnings are errors in these tests


def test_no_warning_if_all_images_have_one_size(tmp_path):
    (tmp_path / "in").mkdir()
    for number in range(8):
        Image.fromarray(np.full((20, 30, 3), number, np.uint8)).save(tmp_path / "in" / f"{number}.png")
    wt.pack(tmp_path / "in", tmp_path / "out")
    make(tmp_path / "out", view=None, fields="image")


@pytest.mark.parametrize(
    ("ranks", "num_workers", "words"), [("1", 9, "num_workers=9, but this"), ("4", 3, "each of 4")]
)
def test_many_more_workers_than_cores_issue_a_warning(packed, monkeypatch, ranks, num_workers, words):
    monkeypatch.setattr(advice, "available_cores", lambda: 2)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
    with pytest.warns(UserWarning, match=f"{words}.* machine has 2 cores: .*tune"):
        make(packed, fields="label", num_workers=num_workers)
    for accepted in (0, 2, None, "auto"):
        make(packed, fields="label", num_workers=accepted)


PROGRAM = """
import wds_tools as wt

loader = wt.make_loader({0!r}, batch_size=4, num_workers=0)  # here
"""


def test_a_warning_is_issued_once_at_the_line_of_the_users_program(packed, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM.format(str(packed)))
    run = preloaded.run([tmp_path / "program.py"])
    assert run.stderr.count(IMAGE_LIST) == 1
    assert "program.py:4: UserWarning: images" in run.stderr


def stream(packed, **options):
    return wt.StreamingDataset(packed, **{"fields": "label", **options})


DIFFERENT = r"StreamingDataset\(batch_size=30\) is read by a DataLoader with batch_size=20"


def test_a_dataloader_with_another_batch_size_issues_one_warning(packed):
    loader = DataLoader(stream(packed, batch_size=30), batch_size=20)
    with pytest.warns(UserWarning, match=DIFFERENT) as caught:
        list(loader)
    assert [warning.filename for warning in caught] == [__file__]
    list(loader)  # warnings are errors in these tests


@pytest.mark.parametrize(
    ("dataset_options", "loader_batch"),
    [({"batch_size": 20}, 20), ({}, 20), ({"batch_size": 20}, None), ({"decode": False}, None)],
)
@pytest.mark.torture_except("dataset_options1-20", "dataset_options2-None")
def test_no_warning_for_equal_batch_sizes_or_single_samples(packed, dataset_options, loader_batch):
    options = {"fields": "label", **dataset_options} if dataset_options.get("decode", True) else dataset_options
    dataset = wt.StreamingDataset(packed, **options)
    list(DataLoader(dataset, batch_size=loader_batch))
    list(dataset)
    if loader_batch:
        next(iter(DataLoader(dataset, batch_size=loader_batch, num_workers=2)))


WORKERS = """
import multiprocessing
import wds_tools as wt
from torch.utils.data import DataLoader

if __name__ == "__main__":
    multiprocessing.set_forkserver_preload(["wds_tools.loading.loader"])  # torch is imported once
    dataset = wt.StreamingDataset({0!r}, batch_size=30, fields="label")
    loader = DataLoader(dataset, batch_size=20, num_workers=2, multiprocessing_context={1!r})
    for epoch in range(2):
        print(sum(map(len, loader)))
"""


@pytest.mark.parametrize("context", ["fork", "forkserver"])
@pytest.mark.torture_except("fork")
def test_the_workers_of_a_dataloader_issue_one_warning_together(packed, tmp_path, context):
    (tmp_path / "program.py").write_text(WORKERS.format(str(packed), context))
    run = preloaded.run([tmp_path / "program.py"])
    assert run.stdout.split() == ["390"] * 2
    assert run.stderr.count("is read by a DataLoader with batch_size=20") == 1


def test_the_batch_size_is_found_in_the_stack_of_torchs_fetcher():
    """The check reads a local variable of torch. If torch renamed it, the warning would disappear silently."""

    class ReportBatchSize(torch.utils.data.IterableDataset):
        def __iter__(self):
            yield advice.batch_size_of_dataloader()

    assert next(iter(DataLoader(ReportBatchSize(), batch_size=7))).tolist() == [7]


def test_class_numbers_from_before_a_merge_are_a_warning(tmp_path):
    for name in "ab":
        with wt.ShardWriter(tmp_path / name / "a-%d.tar", classes=[name]) as writer:
            writer.write({"__key__": name, "cls": 0})
    merged = tmp_path / "merged"
    wt.merge([tmp_path / "a", tmp_path / "b"], merged)
    words = "merged from datasets with different class numbers.*read the field 'label'.*reshard"
    with pytest.warns(UserWarning, match=words) as warned:
        make(merged, batch_size=2, fields=("label", "cls"))
    assert [one.filename for one in warned] == [__file__]
    with pytest.warns(UserWarning, match=words):
        wt.StreamingDataset(merged, fields={"number": wt.Field("cls")})
    with pytest.warns(UserWarning, match=words):
        samples = list(wt.StreamingDataset(merged, decode=False))
    assert [sample["cls"] for sample in samples] == [b"0", b"0"]
    make(merged, batch_size=2, fields=("label", "__key__"))  # warnings are errors in these tests
    make(tmp_path / "a", batch_size=1, fields=("label", "cls"))

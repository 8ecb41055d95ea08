"""Frames: the numbered images of a sample are one field, with one region and flip."""

import json
from itertools import islice

import numpy as np
import pytest
import torch
from folders import write_tar
from pictures import encode
from PIL import Image
from torch.utils.data import DataLoader
from torchvision import tv_tensors
from torchvision.transforms import v2

import wds_tools as wt
from wds_tools.cli import main
from wds_tools.errors import (
    ChecksumError,
    DecodeError,
    MissingFieldError,
    OptionError,
    SampleError,
    ShardError,
    SourceError,
)

VIEW = wt.RandomResizedCrop((24, 32), scale=(0.3, 0.6), flip=True)


def jpg(number, size=(64, 80)):
    """Return a JPEG whose brightness grows to the right, and with its number."""
    ramp = np.broadcast_to(np.arange(size[1]) * 2 + 4 * number, size)
    return encode(Image.fromarray(np.stack([ramp, ramp // 2, 255 - ramp], axis=2).astype(np.uint8)), "JPEG", quality=97)


def write(folder, counts, name="{:04}.jpg", first=0, **fields):
    """Write one clip per number of frames."""
    with wt.ShardWriter(str(folder / "x-%06d.tar"), maxcount=5) as writer:
        for clip, count in enumerate(counts):
            frames = {name.format(first + number): jpg(number, (64, 80 + clip % 2)) for number in range(count)}
            writer.write({"__key__": f"clip{clip}", "cls": clip, "txt": str(count), **frames, **fields})
    return folder


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    """Return a dataset of 12 clips with 10 to 21 frames."""
    return write(tmp_path_factory.mktemp("clips") / "clips", range(10, 22))


def loader_of(dataset, spec, **options):
    fields = {"clip": spec, "label": wt.Label()} if isinstance(spec, wt.Frames) else spec
    return wt.make_loader(dataset, **{"batch_size": 4, "num_workers": 0, "fields": fields, **options})


def batches(dataset, spec, **options):
    with loader_of(dataset, spec, **options) as loader:
        return list(loader)


def numbers_of(clip):
    """Return the numbers of the frames of a clip that are shown whole."""
    return [round((frame[0, :, 0].float().mean().item()) / 4) for frame in clip]


def test_frames_are_in_the_order_of_their_numbers_and_of_different_lengths_come_as_a_list(tmp_path):
    for number, name in enumerate(("{:04}.jpg", "frame{}.jpg", "{}.jpeg")):
        folder = write(tmp_path / str(number), [12, 3], name, first=number)
        (batch,) = batches(folder, wt.Frames(name.partition("{")[0] + "*" + name.rpartition("}")[2]), batch_size=2)
        assert [clip.shape for clip in batch.clip] == [(12, 3, 64, 80), (3, 3, 64, 81)]
        assert [numbers_of(clip) for clip in batch.clip] == [list(range(12)), list(range(3))]


def test_a_frame_has_the_pixels_of_an_image_and_all_of_a_clip_share_one_region_and_flip(clips):
    (plain, *_) = batches(clips, wt.Frames(frames=8), shuffle=True)
    image = {"image": wt.Image("0003.jpg"), "clip": wt.Frames(frames=8, view=VIEW)}
    (batch, *_) = batches(clips, image, shuffle=True)
    assert batch.clip.shape == (4, 8, 3, 24, 32)
    for clip, shown, whole in zip(batch.clip, plain.clip, batch.image, strict=True):
        assert torch.equal(shown[3], whole)
        # The brightness differs by 4 from frame to frame. With one region and flip, it does at each pixel.
        steps = clip[1:, 0].float() - clip[:-1, 0].float()
        assert (steps - 4).abs().max() <= 3
    slopes = batch.clip[:, 0, 0, :, -1].float().mean(1) - batch.clip[:, 0, 0, :, 0].float().mean(1)
    assert (slopes > 0).any()
    assert (slopes < 0).any()
    assert len(batch.clip[:, 0, 0].float().mean((1, 2)).unique()) == 4


@pytest.mark.parametrize("view", [VIEW, None, wt.Resize(20)])
@pytest.mark.torture_except("view0")
def test_clips_are_the_same_with_several_workers(clips, view):
    spec = wt.Frames(view=view, frames=4, stride=2, start="random")
    expected = batches(clips, spec, shuffle=True)
    again = batches(clips, spec, shuffle=True, num_workers=2)
    for batch, other in zip(again, expected, strict=True):
        assert torch.equal(batch.label, other.label)
        assert all(map(torch.equal, batch.clip, other.clip))


def test_the_start_is_the_first_frame_the_centre_or_random(clips):
    for start in ("first", "center", "random"):
        spec = wt.Frames(frames=4, stride=3, start=start)
        found = [
            (numbers_of(clip), 10 + label)
            for batch in batches(clips, spec)
            for clip, label in zip(batch.clip, batch.label.tolist(), strict=True)
        ]
        assert all(numbers == list(range(numbers[0], numbers[0] + 12, 3))[:4] for numbers, _ in found)
        firsts = [numbers[0] for numbers, _ in found]
        assert all(numbers[-1] < count for numbers, count in found)
        if start != "random":
            assert firsts == [0 if start == "first" else (count - 10) // 2 for _, count in found]
    with loader_of(clips, wt.Frames(frames=2, start="random"), batch_size=12) as loader:
        epochs = [[numbers_of(clip)[0] for clip in batch.clip] for _ in range(2) for batch in loader]
    assert epochs[0] != epochs[1]
    assert len(set(epochs[0])) > 4


@pytest.mark.parametrize("pad", [9, wt.Pad(9, size=30), wt.Pad(9, multiple_of=8)])
@pytest.mark.torture_except("pad1")
def test_clips_of_different_lengths_can_be_padded(clips, pad):
    spec = wt.Frames(view=wt.Resize((8, 10)), pad=pad)
    first, again = (batches(clips, spec, num_workers=n) for n in (0, 2))
    for batch, other in zip(first, again, strict=True):
        assert torch.equal(batch.clip, other.clip)
        assert torch.equal(batch.clip_mask, other.clip_mask)
        counts = [10 + label for label in batch.label.tolist()]
        assert batch.clip_mask.sum(1).tolist() == counts
        longest = {9: max(counts)}.get(pad, 30 if pad == wt.Pad(9, size=30) else -(-max(counts) // 8) * 8)
        assert batch.clip.shape == (4, longest, 3, 8, 10)
        assert (batch.clip[~batch.clip_mask] == 9).all()
    spec = wt.Frames(view=wt.Resize((8, 10)), frames=15, pad=0)
    assert [batch.clip_mask.sum(1).tolist() for batch in batches(clips, spec)] == [
        [10, 11, 12, 13],
        [14, *[15] * 3],
        [15] * 4,
    ]


def test_a_clip_with_too_few_frames_is_an_error_or_is_replaced(clips):
    spec = wt.Frames(frames=11)
    with (
        loader_of(clips, spec) as loader,
        pytest.raises(SampleError, match=r"10 frames, but frames=11 .* needs 11") as caught,
    ):
        next(iter(loader))
    assert caught.value.key == "clip0"
    results = [batches(clips, spec, on_error="replace", max_errors=1, num_workers=n) for n in (0, 1)]
    for batch, other in zip(*results, strict=True):
        assert 0 not in batch.label
        assert all(map(torch.equal, batch.clip, other.clip))


def test_a_resumed_loader_and_a_streaming_dataset_have_the_same_clips(clips):
    spec = {"clip": wt.Frames(view=VIEW, frames=4, start="random"), "label": wt.Label()}
    expected = batches(clips, spec, shuffle=True)
    with loader_of(clips, spec, shuffle=True, num_workers=1) as loader:
        list(islice(loader, 1))
        state = json.loads(json.dumps(loader.state_dict()))
    with loader_of(clips, spec, shuffle=True, batch_size=2) as loader:
        loader.load_state_dict(state)
        rest = torch.cat([batch.clip for batch in loader])
    assert torch.equal(rest, torch.cat([batch.clip for batch in expected[1:]]))
    dataset = wt.StreamingDataset(clips, batch_size=4, fields=spec, shuffle=True)
    for batch, other in zip(DataLoader(dataset, batch_size=4, num_workers=0), expected, strict=True):
        assert torch.equal(batch.clip, other.clip)


def test_the_frames_and_the_region_of_a_clip_are_explained(clips, tmp_path, capsys):
    options = {"frames": 4, "stride": 2, "start": "random", "view": VIEW}
    fields = {"clip": wt.Frames(**options), "whole": wt.Frames(), "key": wt.Key()}
    with loader_of(clips, fields, shuffle=True) as loader:
        *_, batch = loader
        (tmp_path / "state.json").write_text(json.dumps(loader.state_dict()))
        step = loader.explain(2)
    assert step.image_fields == ["clip", "whole"]
    for i, sample in enumerate(step.samples):
        assert sample.key == batch.key[i]
        assert torch.equal(torch.stack(step.images("clip", i)), batch.clip[i])
        assert torch.equal(torch.stack(step.images("whole", i)), batch.whole[i])
        assert sample.frames["whole"] == tuple(f"{number:04}.jpg" for number in range(len(batch.whole[i])))
        assert sample.crops["whole"] == ()
        (crop,) = sample.crops["clip"]
        for name, shown in zip(sample.frames["clip"], batch.clip[i], strict=True):
            box = (crop.top, crop.left, crop.height, crop.width)
            expected = v2.functional.resized_crop(batch.whole[i][int(name.removesuffix(".jpg"))], *box, [*crop.size])
            expected = expected.flip(-1) if crop.flip else expected
            assert (expected.int() - shown.int()).abs().float().mean() < 1
    with pytest.raises(SystemExit):
        main(["plan", str(clips), "--state", str(tmp_path / "state.json"), "--step", "2"])
    lines = capsys.readouterr().out.splitlines()[1:]
    for line, sample in zip(lines, step.samples, strict=True):
        assert f"clip 4 frames, {sample.frames['clip'][0]} to {sample.frames['clip'][-1]}, " in line
        assert f"{sample.crops['clip'][0]}; whole {len(sample.frames['whole'])} frames" in line


@pytest.mark.parametrize("pad", [None, 0])
def test_a_clip_that_is_too_short_is_explained_without_frames_except_with_padding(clips, pad):
    with loader_of(clips, wt.Frames(frames=11, view=VIEW, pad=pad), batch_size=2) as loader:
        short, other = loader.explain(0).samples
        assert [len(other.frames["clip"]), len(other.crops["clip"])] == [11, 1]
        assert [len(short.frames["clip"]), len(short.crops["clip"])] == ([0, 0] if pad is None else [10, 1])
        assert len(loader.explain(0).images("clip", 1)) == 11


def test_a_sample_transform_gets_a_video(clips):
    def flip(sample):
        assert type(sample["clip"]) is tv_tensors.Video
        return {**sample, "clip": v2.functional.horizontal_flip(sample["clip"])}

    spec = wt.Frames(view=wt.Resize((8, 10)), frames=4)
    (batch, *_), (plain, *_) = batches(clips, spec, sample_transform=flip, num_workers=1), batches(clips, spec)
    assert torch.equal(batch.clip, plain.clip.flip(-1))


def test_damage_of_a_frame_and_frames_of_different_sizes_name_the_field_and_the_sample(tmp_path):
    folder = write(tmp_path / "a", [3] * 4, **{"0001.jpg": jpg(1, (10, 12))})
    with loader_of(folder, wt.Frames()) as loader, pytest.raises(DecodeError) as caught:
        next(iter(loader))
    assert "field '0001.jpg': the size is 12x10, but that of field '0000.jpg' is 80x64" in str(caught.value)
    assert caught.value.key == "clip0"
    folder = write(tmp_path / "b", [3] * 4)
    path = min(folder.glob("*.tar"))
    data = bytearray(path.read_bytes())
    data[data.index(b"clip2.0001.jpg") + 900] ^= 1
    path.write_bytes(data)
    for view in (None, VIEW):
        with loader_of(folder, wt.Frames(view=view)) as loader, pytest.raises(ChecksumError, match=r"'0001.jpg'"):
            next(iter(loader))


def test_a_dataset_and_a_sample_without_such_fields_are_errors(clips, tmp_path):
    with pytest.raises(MissingFieldError, match=r"no 'frame\*.jpg'"):
        loader_of(clips, wt.Frames("frame*.jpg"))
    folder = write(tmp_path, [2, 2, 0, 2])
    with (
        loader_of(folder, wt.Frames()) as loader,
        pytest.raises(MissingFieldError, match=r"no field '\*.jpg'") as caught,
    ):
        next(iter(loader))
    assert caught.value.key == "clip2"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"field": "0000.jpg"}, r"names with one \*"),
        ({"field": "*.*"}, r"names with one \*"),
        ({"view": [VIEW]}, "RandomResizedCrop"),
        ({"frames": 0}, "1 and more"),
        ({"stride": 0}, "1 and more"),
        ({"start": "last"}, "'first', 'center', 'random'"),
        ({"start": "random"}, "requires frames="),
        ({"pad": wt.Pad(size=(3, 4))}, "its size is a length"),
    ],
)
def test_an_invalid_specification_is_refused(options, words):
    with pytest.raises(OptionError, match=words):
        wt.Frames(**options)


def test_tars_of_clips_are_indexed_verified_and_unpacked_and_pack_refuses_them(tmp_path):
    clips = [(f"clip{clip}.{number:03}.jpg", jpg(number)) for clip in range(3) for number in range(5 + clip)]
    write_tar(tmp_path / "shards" / "a.tar", clips)
    pattern = str(tmp_path / "shards" / "*.tar")
    with pytest.raises(ShardError, match="--dots-in-fields"):  # they might be images whose keys have dots
        wt.index_shards(pattern)
    wt.index_shards(pattern, dots_in_fields=True)
    assert wt.verify(tmp_path / "shards").samples == 3
    (batch,) = batches(tmp_path / "shards", {"clip": wt.Frames(), "key": wt.Key()}, batch_size=3)
    assert [(key, len(clip)) for key, clip in zip(batch.key, batch.clip, strict=True)] == [
        (f"clip{clip}", 5 + clip) for clip in range(3)
    ]
    wt.unpack(tmp_path / "shards", tmp_path / "files")
    assert len(list((tmp_path / "files").rglob("*.jpg"))) == 18
    with pytest.raises(SourceError, match=r"has no image among its fields '000.jpg', '001.jpg'"):
        wt.pack(tmp_path / "shards", tmp_path / "packed")

"""Video and audio files: bytes for the user's decoder, in the worker."""

import io
import wave

import numpy as np
import pytest
import torch

import wds_tools as wt
from wds_tools.errors import OptionError, SampleError

VIDEO = bytes(range(256)) * 3


def wav(number):
    """Return an audio file of 16 bits with ``10 + number`` frames."""
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setparams((1, 2, 8000, 0, "NONE", ""))
        file.writeframes((np.arange(10 + number) * 100).astype("<i2").tobytes())
    return out.getvalue()


def decode_wav(data):
    """Return the samples of an audio file from a random position on."""
    with wave.open(io.BytesIO(data)) as file:
        samples = torch.frombuffer(bytearray(file.readframes(file.getnframes())), dtype=torch.int16)
    return samples[int(torch.randint(5, ())) :]


@pytest.fixture(scope="module")
def media(tmp_path_factory):
    folder = tmp_path_factory.mktemp("media")
    with wt.ShardWriter(str(folder / "x-%06d.tar")) as writer:
        for number in range(8):
            video = VIDEO + bytes([number])
            boxes = {"boxes": [[0, 0, 1, 1], [90, 90, 1, 1]], "names": "ab"}
            image = np.zeros((20, 30, 3), np.uint8)
            writer.write({"__key__": str(number), "mp4": video, "wav": wav(number), "json": boxes, "png": image})
    return folder


def batch_of(dataset, fields, **options):
    options = {"batch_size": 8, "num_workers": 0, "fields": fields, "shuffle": True, **options}
    with wt.make_loader(dataset, **options) as loader:
        return next(iter(loader))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_files_reach_the_batch_and_a_sample_transform_as_bytes(media, num_workers):
    fields = {"video": wt.Field("mp4"), "audio": wt.Field("wav"), "key": wt.Key()}
    batch = batch_of(media, fields, num_workers=num_workers)
    assert batch.video == [VIDEO + bytes([int(key)]) for key in batch.key]
    assert batch.audio == [wav(int(key)) for key in batch.key]

    def number_of(sample):
        assert type(sample["video"]) is bytes
        return {**sample, "video": sample["video"][-1]}

    batch = batch_of(media, fields, num_workers=num_workers, sample_transform=number_of)
    assert batch.video.tolist() == [int(key) for key in batch.key]


def test_a_decoder_is_called_in_the_worker_with_keyed_random_numbers(media):
    fields = {
        "audio": wt.Field("wav", decode=decode_wav, pad=-1),
        "video": wt.Field("mp4", decode=len),
        "key": wt.Key(),
    }
    batch = batch_of(media, fields)
    assert batch.video.tolist() == [769] * 8
    lengths = batch.audio_mask.sum(1).tolist()
    for row, length, key in zip(batch.audio, lengths, batch.key, strict=True):
        first = 10 + int(key) - length
        assert 0 <= first < 5
        assert row[:length].tolist() == list(range(100 * first, 100 * (10 + int(key)), 100))
    assert len({10 + int(key) - length for key, length in zip(batch.key, lengths, strict=True)}) > 1
    again = batch_of(media, fields, num_workers=1)
    assert torch.equal(again.audio, batch.audio)
    assert torch.equal(again.audio_mask, batch.audio_mask)


def test_a_decoder_is_called_before_entries_of_dropped_boxes_are_dropped(media):
    image = wt.Image(view=wt.Resize((20, 30)))
    boxes = wt.Boxes(path="boxes", like="image")
    names = wt.Field("json", path="names", decode=lambda text: [ord(letter) for letter in text], like="boxes")
    batch = batch_of(media, {"image": image, "boxes": boxes, "names": names})
    assert batch.names.tolist() == [[97]] * 8


def test_invalid_text_and_an_exception_of_a_decoder_are_errors_that_name_the_sample(media):
    with pytest.raises(SampleError, match=r"field 'mp4' has bytes that are not UTF-8 .* read it with Field"):
        batch_of(media, {"text": wt.Text("mp4")})
    with pytest.raises(ZeroDivisionError) as caught:
        batch_of(media, {"video": wt.Field("mp4", decode=lambda data: len(data) / 0)})
    assert "in decode= of shard x-000000.tar, key " in str(caught.value.__notes__)
    with pytest.raises(OptionError, match="allowed are functions"):
        wt.Field("mp4", decode="av")

"""Image(mode="unchanged"): grey, alpha, 16 bits and many channels, with views, like and several crops."""

import io

import numpy as np
import pytest
import torch
from pictures import encode
from PIL import Image, ImageOps
from scenes import png
from sixteen_bits import deep_png
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

import wds_tools as wt
from wds_tools.errors import DecodeError, OptionError
from wds_tools.order.keyed_random import key_of, uniform

HEIGHT, WIDTH = 36, 52
VIEW = wt.RandomResizedCrop((20, 24), flip=True)
SMOOTH = np.add.outer(np.arange(HEIGHT) * 3, np.arange(WIDTH) * 2)


def pixels(channels, dtype=np.uint8):
    """Return a smooth image [height, width, channels]."""
    planes = [SMOOTH[:, :: (-1) ** n] * (101 if dtype == np.uint16 else 1) + n for n in range(channels)]
    return np.stack(planes, axis=2).astype(dtype)


def turned(array):
    """Return a PNG that is stored rotated, and has an EXIF orientation that turns it back."""
    exif = Image.Exif()
    exif[0x0112] = 6
    return encode(Image.fromarray(np.rot90(array).copy()), "PNG", exif=exif)


def npy(array):
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


TWO = np.where(SMOOTH > 90, 255, 0).astype(np.uint8)
PALETTE = Image.fromarray(pixels(1)[:, :, 0])
PALETTE.putpalette([value for number in range(256) for value in (number, 255 - number, 7)])
KINDS = {
    "grey PNG": ("png", png(pixels(1)[:, :, 0]), pixels(1)),
    "grey with alpha": ("png", encode(Image.fromarray(pixels(2), "LA"), "PNG"), pixels(2)),
    "RGB": ("png", png(pixels(3)), pixels(3)),
    "RGBA": ("png", png(pixels(4)), pixels(4)),
    "WebP with alpha": ("webp", encode(Image.fromarray(pixels(4)), "WEBP", lossless=True, exact=True), pixels(4)),
    "1 bit": ("png", encode(Image.fromarray(TWO).convert("1"), "PNG"), TWO[:, :, None]),
    "palette": ("png", encode(PALETTE, "PNG"), np.asarray(PALETTE.convert("RGB"))),
    "transparent palette": ("png", encode(PALETTE, "PNG", transparency=9), None),
    "turned": ("png", turned(pixels(4)), pixels(4)),
    **{f"PNG of {n} x 16 bits": ("png", deep_png(pixels(n, np.uint16)), pixels(n, np.uint16)) for n in (1, 2, 3, 4)},
    "TIFF of 16 bits": ("tif", encode(Image.fromarray(pixels(1, np.uint16)[:, :, 0]), "TIFF"), pixels(1, np.uint16)),
    "TIFF": ("tif", encode(Image.fromarray(pixels(4)), "TIFF", compression="tiff_lzw"), pixels(4)),
    "grey JPEG": ("jpg", encode(Image.fromarray(pixels(1)[:, :, 0]), "JPEG", quality=98), pixels(1)),
    "JPEG": ("jpg", encode(Image.fromarray(pixels(3)), "JPEG", quality=98, subsampling=0), pixels(3)),
    "CMYK JPEG": ("jpg", encode(Image.fromarray(pixels(4), "CMYK"), "JPEG", quality=98), pixels(4)),
    "npy of 8 channels": ("npy", npy(pixels(8, np.uint16)), pixels(8, np.uint16)),
    "grey npy": ("npy", npy(pixels(1, np.float32)[:, :, 0]), pixels(1, np.float32)),
}


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


def written(folder, *fields):
    with wt.ShardWriter(str(folder / "x-%06d.tar")) as writer:
        for number, one in enumerate(fields):
            writer.write({"__key__": str(number), "cls": number, **one})
    return folder


def batch_of(folder, fields, **options):
    with wt.make_loader(folder, **{"batch_size": 4, "num_workers": 0, "fields": fields, **options}) as loader:
        return next(iter(loader))


def regions_of(view, n):
    u = uniform(key_of("view", 0, 0), np.arange(n), view.draws)
    return view.regions(np.full(n, WIDTH), np.full(n, HEIGHT), u)


def test_channels_and_dtype_are_kept_and_views_are_those_of_torchvision(kind, tmp_path):
    field, data, expected = KINDS[kind]
    if expected is None:
        expected = np.asarray(Image.open(io.BytesIO(data)).convert("RGBA"))
        assert expected[:, :, 3].min() == 0
    folder = written(tmp_path, *[{field: data}] * 4)
    names = {field, "image"}
    fields = {
        **{name: wt.Image(name, mode="unchanged") for name in names},
        "crop": wt.Image(field, view=VIEW, mode="unchanged"),
        "crops": wt.Image(field, view=[VIEW, wt.Resize((10, 12))], mode="unchanged"),
    }
    batch = batch_of(folder, fields)
    tensor = torch.from_numpy(expected.transpose(2, 0, 1).copy())
    exact = field != "jpg"
    for name in names:
        value = batch[list(fields).index(name)]
        assert (value.dtype, value.shape) == (tensor.dtype, (4, *tensor.shape))
        difference = (value.double() - tensor.double()).abs()
        assert difference.max() == 0 if exact else difference.mean() < 3
    assert batch.crop.dtype == tensor.dtype
    assert batch.crop.shape == (4, len(tensor), 20, 24)
    assert [crop.shape for crop in batch.crops] == [(4, len(tensor), 20, 24), (4, len(tensor), 10, 12)]
    regions = regions_of(VIEW, 4)
    whole = batch.image.double()
    for i in range(4):
        left, top, width, height = regions.box[i].tolist()
        region = v2.functional.crop(whole[i], top, left, height, width)
        shown = v2.functional.resize(region, [20, 24], antialias=True)
        shown = shown.flip(-1) if regions.flip[i] else shown
        assert (batch.crop[i].double() - shown).abs().max() <= 1


@pytest.mark.torture
def test_workers_give_the_same_pixels(tmp_path):
    folder = written(tmp_path, *[{"png": deep_png(pixels(4, np.uint16) + n)} for n in range(8)])
    crops = wt.Image(view=[VIEW, wt.Resize(20)], mode="unchanged")
    fields = {"image": wt.Image(view=VIEW, mode="unchanged"), "crops": crops, "whole": wt.Image(mode="unchanged")}
    expected = batch_of(folder, fields, shuffle=True)
    for num_workers in (1, 3):
        batch = batch_of(folder, fields, shuffle=True, num_workers=num_workers)
        assert torch.equal(batch.image, expected.image)
        assert torch.equal(batch.whole, expected.whole)
        assert all(map(torch.equal, batch.crops, expected.crops))


def test_like_works_in_both_directions(tmp_path):
    fields = {"jpg": KINDS["JPEG"][1], "depth.png": deep_png(pixels(1, np.uint16)), "mask.png": png(TWO)}
    folder = written(tmp_path, *[fields] * 4)
    rgb = {"image": wt.Image(view=VIEW), "depth": wt.Image("depth.png", like="image", mode="unchanged")}
    deep = {"depth": wt.Image("depth.png", view=VIEW, mode="unchanged"), "image": wt.Image(like="depth")}
    mask = {"mask": wt.Mask("mask.png", like="image"), "array": wt.Array("depth.png", like="image")}
    first, second = batch_of(folder, {**rgb, **mask}), batch_of(folder, {**deep, **mask})
    for name in ("image", "depth", "mask", "array"):
        assert torch.equal(getattr(first, name), getattr(second, name))
    assert torch.equal(first.depth, first.array)


def test_images_of_different_channels_come_as_a_list_or_are_an_error_with_padding(tmp_path):
    kinds = [{"png": KINDS[name][1]} for name in ("RGB", "RGBA", "RGB", "PNG of 3 x 16 bits")]
    folder = written(tmp_path, *kinds)
    for num_workers in (0, 2):
        batch = batch_of(folder, {"image": wt.Image(view=VIEW, mode="unchanged")}, num_workers=num_workers)
        assert [(len(image), image.dtype) for image in batch.image] == [
            (3, torch.uint8),
            (4, torch.uint8),
            (3, torch.uint8),
            (3, torch.uint16),
        ]
    with pytest.raises(OptionError, match=r"differ in other ways: .*\(4, 36, 52\)"):
        batch_of(folder, {"image": wt.Image(mode="unchanged", pad=0)})


def test_a_transform_and_padding_get_the_stored_channels(tmp_path):
    folder = written(tmp_path, *[{"png": deep_png(pixels(2, np.uint16)[: 20 + n])} for n in range(4)])

    def scaled(image):
        assert (image.dtype, len(image)) == (torch.uint16, 2)
        return image.float() / 65535

    batch = batch_of(folder, {"image": wt.Image(view=VIEW, mode="unchanged", transform=scaled)}, num_workers=1)
    assert (batch.image.dtype, batch.image.shape) == (torch.float32, (4, 2, 20, 24))
    for pad in (9, wt.Pad(9, size=(23, 52))):
        batch = batch_of(folder, {"image": wt.Image(mode="unchanged", pad=pad)}, num_workers=2)
        assert (batch.image.dtype, batch.image.shape) == (torch.uint16, (4, 2, 23, 52))
        assert batch.image_mask.sum((1, 2)).tolist() == [52 * (20 + n) for n in range(4)]


def test_an_array_that_is_not_an_image_is_an_error_that_names_the_sample(tmp_path):
    folder = written(tmp_path, *[{"npy": np.zeros(5)}] * 4)
    for view in (None, VIEW):
        with pytest.raises(DecodeError, match=r"shape \(5,\)") as caught:
            batch_of(folder, {"image": wt.Image("npy", view=view, mode="unchanged")})
        assert caught.value.key == "0"


def test_an_unknown_mode_is_refused():
    with pytest.raises(OptionError, match="'rgb', 'unchanged'"):
        wt.Image(mode="grey")


@pytest.mark.parametrize("mode", ["rgb", "unchanged"])
def test_images_with_a_side_of_one_pixel_are_rotated_as_in_pillow(tmp_path, mode):
    files = {}
    with wt.ShardWriter(tmp_path / "thin" / "s-%06d.tar") as writer:
        for orientation in range(1, 9):
            for size in ((1, 1), (7, 1), (1, 9)):
                exif, out = Image.Exif(), io.BytesIO()
                exif[0x0112] = orientation
                colours = np.linspace(0, 255, size[0] * size[1]).astype(np.uint8).reshape(size[::-1])
                Image.fromarray(colours).convert("RGB").save(out, "JPEG", quality=95, exif=exif)
                key = f"{orientation}-{size[0]}x{size[1]}"
                files[key] = out.getvalue()
                writer.write({"__key__": key, "jpg": files[key]})
    view = wt.Resize((5, 6))
    fields = {"image": wt.Image("jpg", mode=mode, view=view), "key": wt.Key()}
    with wt.make_loader(tmp_path / "thin", batch_size=8, num_workers=0, fields=fields) as loader:
        for image, key in ((image, key) for batch in loader for image, key in zip(batch.image, batch.key, strict=True)):
            upright = ImageOps.exif_transpose(Image.open(io.BytesIO(files[key]))).convert("RGB")
            expected = functional.resize(functional.pil_to_tensor(upright), [5, 6], antialias=True)
            assert (image.int() - expected.int()).abs().max() <= 2, key

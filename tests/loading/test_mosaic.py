"""`Mosaic` in a loader, compared with its documented steps on a canvas of twice the size; partners; resume; errors."""

import json
from itertools import islice

import numpy as np
import pytest
import torch
from pictures import encode
from PIL import Image, ImageFilter
from scenes import png
from torch.utils.data import DataLoader
from torchvision.transforms import v2

import wds_tools as wt
from wds_tools.errors import DecodeError, OptionError
from wds_tools.inspection.saved_step import SavedStep
from wds_tools.options import RemoteOptions
from wds_tools.order.keyed_random import key_of, uniform
from wds_tools.reading.select import Choice

SIZE = (96, 128)
MOSAIC = wt.Mosaic(SIZE, translate=0.2, flip=0.5, flip_vertical=0.5, p=0.9)
RULES = {"min_visible": 0.1, "min_side": 2, "max_aspect": 100}
SPECS = {
    "image": wt.Image(view=MOSAIC),
    "mask": wt.Mask("mask.png", like="image", fill=250),
    "boxes": wt.Boxes("json", path="objects.bbox", like="image", **RULES),
    "numbers": wt.Field("json", path="objects.number", like="boxes"),
    "points": wt.Keypoints("json", path="points", like="image", flip_index=range(2)),
    "label": wt.Label(),
    "key": wt.Key(),
}


@pytest.fixture(scope="module")
def smooth(tmp_path_factory, photos):
    """Write 40 smooth images, on which all filters agree, with a mask, boxes and points."""
    folder = tmp_path_factory.mktemp("smooth")
    with wt.ShardWriter(str(folder / "smooth-%06d.tar"), maxcount=12) as writer:
        for number, path in enumerate(sorted(photos.glob("*/00[0-4].*"))):
            with Image.open(path) as opened:
                image = opened.convert("RGB").reduce(2).filter(ImageFilter.GaussianBlur(4))
            width, height = image.size
            y, x = np.indices((height, width))
            boxes = [[width * a / 9, height * a / 11, width / (a + 2), height / (a + 1.5)] for a in range(number % 9)]
            writer.write(
                {
                    "__key__": f"{number:04}",
                    "jpg": encode(image, "JPEG", quality=97),
                    "mask.png": png((1 + (4 * x // width) + 5 * (4 * y // height)).astype(np.uint8)),
                    "json": {
                        "objects": [{"bbox": box, "number": 100 * number + i} for i, box in enumerate(boxes)],
                        "points": [[width / 3, height / 3], [width - 1, 0]],
                    },
                    "cls": number % 8,
                }
            )
    return folder


def loader_of(dataset, specs=SPECS, **options):
    return wt.make_loader(dataset, **{"batch_size": 8, "num_workers": 0, "shuffle": True, "fields": specs, **options})


def plain(value):
    if isinstance(value, torch.Tensor):
        return value.tolist()
    return [plain(one) for one in value] if isinstance(value, list | tuple) else value


def plain_batches(loader, steps=None):
    return [plain(tuple(batch)) for batch in islice(loader, steps)]


class Canvas:
    """The documented steps, one after the other: resize, paste, map the canvas by a matrix, mirror."""

    def __init__(self, u, samples, view=MOSAIC):
        (self.height, self.width), zoom, self.translate = SIZE, view.scale, view.translate
        self.is_mosaic = len(u) > 10 and u[12] < view.p
        self.zoom = zoom[0] + u[0] * (zoom[1] - zoom[0])
        self.shift = [(0.5 + self.translate * (2 * draw - 1)) * side for draw, side in zip(u[1:3], SIZE, strict=True)]
        self.flips = u[3] < view.flip, u[4] < view.flip_vertical  # left to right, top to bottom
        # the canvas of a single image has the size of the result
        self.size = (2 * self.height, 2 * self.width) if self.is_mosaic else SIZE
        self.samples = samples if self.is_mosaic else samples[:1]
        self.matrix = self.matrix_of(view, u)
        self.fitted = []
        for image, *_ in self.samples:
            height, width = image.shape[1:]
            ratio = min(self.height / height, self.width / width)
            fitted = min(int(np.ceil(height * ratio)), self.height), min(int(np.ceil(width * ratio)), self.width)
            self.fitted.append(fitted)
        if not self.is_mosaic:
            self.pads = [[round((side - one) / 2 - 0.1) for side, one in zip(SIZE, self.fitted[0], strict=True)]]
        elif view.tiles == 4:
            centre = [int((0.5 + draw) * side) for draw, side in zip(u[10:12], SIZE, strict=False)]
            self.pads = [
                (centre[0] - (tile < 2) * height, centre[1] - (tile % 2 == 0) * width)
                for tile, (height, width) in enumerate(self.fitted)
            ]
        else:
            self.pads = self.pads_of_nine()

    def pads_of_nine(self):
        """Return top and left of nine tiles: around the first one, clockwise, each touches the one before it."""
        top, left = self.height // 2, self.width // 2  # the middle of three times three results, of which two are kept
        height, width = self.fitted[0]
        bottom, right = top + height, left + width
        pads = [(top, left)]
        for tile, (h, w) in enumerate(self.fitted[1:], 1):
            before_h, before_w = self.fitted[tile - 1]
            pads.append(
                {
                    1: (top - h, left),  # above
                    2: (top - h, left + before_w),
                    3: (top, right),  # to the right
                    4: (top + before_h, right),
                    5: (bottom, right - w),  # below
                    6: (bottom, right - before_w - w),
                    7: (bottom - h, left - w),  # to the left
                    8: (bottom - before_h - h, left - w),
                }[tile]
            )
        return pads

    def matrix_of(self, view, u):
        """Return the matrix from the canvas to the result, as the product of YOLO's matrices."""
        centre, perspective, rotation, shear, shift = np.eye(3), np.eye(3), np.eye(3), np.eye(3), np.eye(3)
        centre[:2, 2] = -self.size[1] / 2, -self.size[0] / 2
        perspective[2, :2] = view.perspective * (2 * u[8:10] - 1)
        angle = np.radians(view.degrees * (2 * u[5] - 1))
        rotation[:2, :2] = self.zoom * np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
        shear[0, 1], shear[1, 0] = np.tan(np.radians(view.shear * (2 * u[6:8] - 1)))
        shift[:2, 2] = self.shift[::-1]
        return shift @ shear @ rotation @ perspective @ centre

    def points_on_canvas(self, tile, points):
        """Return points (x, y) of an image on the canvas."""
        height, width = self.samples[tile][0].shape[1:]
        scale = np.array([self.fitted[tile][1] / width, self.fitted[tile][0] / height])
        return np.asarray(points, float) * scale + self.pads[tile][::-1]

    def points(self, points, less):
        """Return points of the canvas in the result; ``less`` is 1 for positions of pixels."""
        moved = np.concatenate([points, np.ones((len(points), 1))], axis=1) @ self.matrix.T
        moved = moved[:, :2] / moved[:, 2:]
        sides = np.array(SIZE[::-1]) - less
        return np.where(self.flips, sides - moved, moved)

    def boxes(self):
        """Return the boxes and their numbers, by YOLO's rules for those that are cut off."""
        found, numbers = [], []
        for tile, (_, _, info) in enumerate(self.samples):
            for one in info["objects"]:
                left, top, width, height = one["bbox"]
                box = self.points_on_canvas(tile, [[left, top], [left + width, top + height]])
                box = np.clip(box, 0, self.size[::-1])
                around = self.points(np.array([(x, y) for x in box[:, 0] for y in box[:, 1]]), 0)
                corners = np.array([around.min(axis=0), around.max(axis=0)])
                clipped = np.clip(corners, 0, SIZE[::-1])
                (w1, h1), (w2, h2) = (box[1] - box[0]) * self.zoom, clipped[1] - clipped[0]
                aspect = max(w2 / (h2 + 1e-16), h2 / (w2 + 1e-16))
                if w2 > 2 and h2 > 2 and w2 * h2 / (w1 * h1 + 1e-16) > 0.1 and aspect < 100:
                    found.append(clipped.ravel())
                    numbers.append(one["number"])
        return np.array(found).reshape(-1, 4), numbers

    def keypoints(self):
        """Return the points of all tiles; those beyond the canvas are far outside."""
        of_tiles = [self.points_on_canvas(tile, one[2]["points"]) for tile, one in enumerate(self.samples)]
        points, reach = np.concatenate(of_tiles), 1 / self.zoom
        is_beyond = ((points < -reach) | (points > np.array(self.size[::-1]) + reach)).any(axis=1, keepdims=True)
        return np.where(is_beyond, -np.array(SIZE[::-1]), self.points(points, 1))

    def canvas(self, resize, fill, channels):
        canvas = np.full((channels, *self.size), fill, np.float32)
        for tile, sample in enumerate(self.samples):
            pixels = resize(sample, self.fitted[tile])
            (top, left), (height, width) = self.pads[tile], self.fitted[tile]
            rows, columns = slice(max(top, 0), max(top + height, 0)), slice(max(left, 0), max(left + width, 0))
            area = canvas[:, rows, columns]
            area[...] = pixels[:, rows.start - top :, columns.start - left :][:, : area.shape[1], : area.shape[2]]
        return canvas

    def warped(self, canvas, mode, fill):
        """Return the part of a canvas that the result shows."""
        y, x = np.indices(SIZE) + 0.5
        if self.flips[0]:
            x = self.width - x
        if self.flips[1]:
            y = self.height - y
        shown = np.stack([x, y, np.ones_like(x)], axis=2) @ np.linalg.inv(self.matrix).T
        u, v = (2 * shown[..., axis] / shown[..., 2] / self.size[1 - axis] for axis in (0, 1))
        grid = torch.from_numpy(np.stack([u, v], axis=2) - 1)[None].float()
        values = torch.from_numpy(canvas - fill)[None]
        return torch.nn.functional.grid_sample(values, grid, mode=mode, align_corners=False)[0].numpy() + fill


def cases(folder, epochs=5, view=MOSAIC):
    """Yield for 200 mosaics what the loader returned, and the canvas of the same samples and random numbers."""
    with wt.make_loader(folder, batch_size=40, num_workers=0, fields=("jpg", "mask.png", "json")) as stored:
        (whole,) = stored
    samples = list(zip(whole[0], whole[1], whole[2], strict=True))
    with loader_of(folder, {**SPECS, "image": wt.Image(view=view)}, batch_size=40) as loader:
        for epoch in range(epochs):
            (batch,) = loader
            explained = loader.explain(0, epoch=epoch)
            u = uniform(key_of("view", 0, epoch), explained.positions, view.draws)
            for i in range(40):
                ids = [explained.ids[i], *explained.partners[i]]
                yield batch, i, Canvas(u[i], [samples[one] for one in ids], view)


FLIPS = {"flip": 0.5, "flip_vertical": 0.5}
VIEWS = {
    "mosaic": (MOSAIC, 5, 2),
    "affine": (wt.RandomAffine(SIZE, scale=(0.3, 2), translate=0.3, **FLIPS), 1, 2),
    "rotated": (wt.RandomAffine(SIZE, degrees=40, **FLIPS), 1, 2.5),
    "bent": (wt.RandomAffine(SIZE, shear=20, perspective=0.001, translate=0, **FLIPS), 1, 2.5),
    "nine": (wt.Mosaic(SIZE, tiles=9, scale=(0.4, 1.2), translate=0.2, p=0.9, **FLIPS), 2, 2),
    "all": (wt.Mosaic(SIZE, degrees=25, shear=12, perspective=0.0008, **FLIPS), 2, 2.5),
}


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.torture_except("all")
def test_views_are_those_of_the_canvas(smooth, name):
    view, epochs, distance = VIEWS[name]
    worst, wrong, boxes = [], [], 0
    for batch, i, canvas in cases(smooth, epochs, view):
        drawn = canvas.canvas(
            lambda one, size: v2.functional.resize(one[0], list(size), antialias=True).numpy(), 114, 3
        )
        expected = canvas.warped(drawn, "bilinear", 114)
        difference = abs(batch.image[i].numpy() - expected).mean(axis=0)
        worst.append(difference.mean())
        wrong.append((difference > 24).mean())
        expected_boxes, numbers = canvas.boxes()
        assert torch.as_tensor(batch.numbers[i]).tolist() == numbers
        assert np.abs(batch.boxes[i].numpy() - expected_boxes).max(initial=0) < 0.01
        points = canvas.keypoints()
        # Points far outside are only in the same direction: float32 has 7 digits.
        assert np.allclose(batch.points[i].numpy()[: len(points)], points, rtol=1e-5, atol=0.01)
        boxes += len(numbers)
    assert boxes > 60 * epochs
    assert max(worst) < distance
    # Edges between images are blurred by the second interpolation of the canvas, and sharp in a result drawn once.
    assert np.mean(wrong) < 0.01


BLENDED = wt.Blend(wt.Mosaic(SIZE, scale=(0.4, 1), flip=0.5), p=0.7, alpha=3)


def test_a_blend_has_the_pixels_and_objects_of_two_mosaics(smooth):
    with wt.make_loader(smooth, batch_size=40, num_workers=0, fields=("jpg", "mask.png", "json")) as stored:
        (whole,) = stored
    samples = list(zip(whole[0], whole[1], whole[2], strict=True))
    with loader_of(smooth, {**SPECS, "image": wt.Image(view=BLENDED)}, batch_size=40) as loader:
        (batch,) = loader
        explained = loader.explain(0)
    u = uniform(key_of("view", 0, 0), explained.positions, BLENDED.draws)
    distances, blended = [], 0
    for i, draws in enumerate(u):
        tiles = [samples[one] for one in (explained.ids[i], *explained.partners[i])]
        both = [Canvas(draws[:13], tiles[:4], BLENDED.view), Canvas(draws[13:26], tiles[4:], BLENDED.view)]
        is_alone = draws[26] >= 0.7
        drawn = [
            canvas.warped(
                canvas.canvas(
                    lambda one, size: v2.functional.resize(one[0], list(size), antialias=True).numpy(), 114, 3
                ),
                "bilinear",
                114,
            )
            for canvas in both
        ]
        share = 1 if is_alone else sorted(draws[27:])[2]  # of 5 numbers the third one is from Beta(3, 3)
        distances.append(np.abs(batch.image[i].numpy() - share * drawn[0] - (1 - share) * drawn[1]).mean())
        found = [canvas.boxes() for canvas in both[: 1 if is_alone else 2]]
        assert torch.as_tensor(batch.numbers[i]).tolist() == [one for _, numbers in found for one in numbers]
        expected = np.concatenate([boxes for boxes, _ in found])
        assert np.abs(batch.boxes[i].numpy() - expected).max(initial=0) < 0.01
        blended += not is_alone
    assert max(distances) < 2
    assert 20 < blended < 36


@pytest.mark.parametrize(
    "view", [BLENDED, wt.Blend(wt.Letterbox(SIZE), p=0.5), wt.Blend(wt.RandomAffine(SIZE, degrees=20), p=0.5)]
)
@pytest.mark.torture_except("view1")
def test_blends_do_not_depend_on_workers_or_resuming_and_masks_show_the_first(smooth, view):
    specs = {**SPECS, "image": wt.Image(view=view)}
    with loader_of(smooth, specs) as loader:
        whole = plain_batches(loader)
        assert np.array(whole[0][1]).shape == (8, *SIZE)
    with loader_of(smooth, specs, num_workers=1) as loader:
        assert plain_batches(loader, 2) == whole[:2]
        state = loader.state_dict()
    with loader_of(smooth, specs) as loader:
        loader.load_state_dict(state)
        assert plain_batches(loader) == whole[2:]
        (pixels,) = loader.explain(2).images("image", 0)
        assert pixels.tolist() == whole[2][0][0]


def test_no_key_point_of_a_hidden_sample_is_in_the_image(smooth):
    hidden = wt.Blend(wt.Mosaic(SIZE, scale=(0.1, 0.2), perspective=0.001, p=0), p=0)  # only the first of 8
    with loader_of(smooth, {**SPECS, "image": wt.Image(view=hidden)}, batch_size=40) as loader:
        (batch,) = loader
    points = batch.points.reshape(40, 8, 2, 2)
    for image, of_tiles in zip(batch.image, points, strict=True):
        assert image.float().std() > 0
        inside = ((of_tiles >= 0) & (of_tiles <= torch.tensor(SIZE[::-1]))).all(dim=-1)
        assert not inside[1:].any()


def test_a_saved_state_explains_a_blend(smooth, tmp_path):
    with loader_of(smooth, {"image": wt.Image(view=BLENDED)}) as loader:
        (batch,) = islice(loader, 1)
        (tmp_path / "state.json").write_text(json.dumps(loader.state_dict()))
    saved = SavedStep(file=tmp_path / "state.json", step=0)
    explained = saved.explain(str(smooth), Choice(), RemoteOptions.of())
    assert explained.partners.shape == (8, 7)
    assert all(torch.equal(explained.images("image", i)[0], pixels) for i, pixels in enumerate(batch[0]))


def test_masks_and_labels_of_a_blend_are_those_of_the_first(smooth):
    batches = []
    for view in (wt.Letterbox(SIZE), wt.Blend(wt.Letterbox(SIZE), p=1)):
        with loader_of(smooth, {**SPECS, "image": wt.Image(view=view)}, batch_size=40) as loader:
            batches += loader
            explained = loader.explain(0)
    alone, blended = batches
    assert torch.equal(alone.mask, blended.mask)
    assert torch.equal(alone.label, blended.label)
    seconds = [explained.ids.tolist().index(one) for (one,) in explained.partners.tolist()]
    share = torch.from_numpy(np.median(uniform(key_of("view", 0, 0), explained.positions, 68)[:, 5:], axis=1))
    expected = torch.lerp(alone.image[seconds].double(), alone.image.double(), share.reshape(-1, 1, 1, 1))
    assert (blended.image - expected).abs().max() < 0.51
    for i, second in enumerate(seconds):
        assert torch.equal(torch.cat([alone.boxes[i], alone.boxes[second]]), blended.boxes[i])


@pytest.mark.parametrize("options", [{"view": wt.Resize(9)}, {"p": 2}, {"alpha": 0.5}, {"alpha": 65}])
def test_an_invalid_blend_is_an_error_with_the_allowed_values(options):
    with pytest.raises(OptionError, match="allowed are"):
        wt.Blend(**{"view": wt.Letterbox(9), **options})


def test_masks_show_the_pixel_below_each_centre(smooth):
    for batch, i, canvas in cases(smooth, epochs=1):
        drawn = canvas.canvas(_nearest, 250, 1)
        expected = canvas.warped(drawn, "nearest", 250)[0]
        assert (batch.mask[i].numpy() != expected).mean() < 0.05  # the canvas rounds twice, at edges of the pattern
        assert set(np.unique(batch.mask[i])) <= set(np.unique(expected)) | set(range(1, 21)) | {250}


def _nearest(sample, size):
    mask = torch.as_tensor(np.asarray(sample[1])).reshape(1, 1, *sample[0].shape[1:]).float()
    return torch.nn.functional.interpolate(mask, size=size, mode="nearest-exact")[0].numpy()


@pytest.mark.parametrize("native", ["1", "0"])
def test_both_paths_agree(smooth, monkeypatch, native):
    monkeypatch.setenv("WDS_TOOLS_NATIVE", native)
    with loader_of(smooth, batch_size=8) as loader:
        images = next(iter(loader)).image
    monkeypatch.setenv("WDS_TOOLS_NATIVE", "1")
    with loader_of(smooth, batch_size=8) as loader:
        assert (next(iter(loader)).image.float() - images.float()).abs().mean((1, 2, 3)).max() < (
            1.5 if native == "0" else 0.01
        )


def test_each_sample_is_the_first_tile_once_and_its_label_and_key_are_those_of_the_batch(smooth):
    with loader_of(smooth) as loader:
        batches = list(loader)
        assert str(loader.epoch_proof()) == "epoch 0: 40 samples, each once"
    keys = [key for batch in batches for key in batch.key]
    assert sorted(keys) == [f"{number:04}" for number in range(40)]
    assert [label for batch in batches for label in batch.label.tolist()] == [int(key) % 8 for key in keys]
    tiles = {int(number) // 100 for batch in batches for numbers in batch.numbers for number in numbers}
    assert len(tiles) > 25  # of 35 samples with boxes, as first tiles or partners


def test_the_mosaics_do_not_depend_on_workers_ranks_or_resuming(smooth):
    with loader_of(smooth) as loader:
        whole = plain_batches(loader)
    with loader_of(smooth, num_workers=1) as loader:
        assert plain_batches(loader, 3) == whole[:3]
        state = loader.state_dict()
    with loader_of(smooth) as loader:
        loader.load_state_dict(state)
        assert plain_batches(loader) == whole[3:]
    ranks = []
    for rank in range(2):
        with loader_of(smooth, batch_size=4, rank=rank, world_size=2) as loader:
            ranks.append(plain_batches(loader))
    by_key = {key: [column[i] for column in batch] for batch in whole for i, key in enumerate(batch[-1])}
    found = {key: [column[i] for column in batch] for one in ranks for batch in one for i, key in enumerate(batch[-1])}
    assert found == by_key


def test_the_pixels_of_a_warped_image_do_not_depend_on_the_others(tmp_path):
    random = np.random.default_rng(2)
    with wt.ShardWriter(str(tmp_path / "a-%06d.tar")) as writer:
        for number in range(24):  # noise, in which each difference is seen
            pixels = random.integers(0, 255, (80, 100, 3), dtype=np.uint8)
            writer.write({"__key__": f"{number}", "png": encode(Image.fromarray(pixels), "PNG"), "cls": 0})
    specs = {"image": wt.Image(view=wt.RandomAffine((80, 100), degrees=30, perspective=0.0005)), "key": wt.Key()}
    images = []
    for size in (1, 24):
        with loader_of(tmp_path, specs, batch_size=size) as loader:
            images.append({key: image for batch in loader for image, key in zip(batch.image, batch.key, strict=True)})
    assert all(torch.equal(image, images[1][key]) for key, image in images[0].items())


def test_a_streaming_dataset_has_the_mosaics_of_the_loader(smooth):
    dataset = wt.StreamingDataset(smooth, batch_size=8, shuffle=True, fields=SPECS)
    batches = DataLoader(dataset, batch_size=8, collate_fn=dataset.collate_fn)
    with loader_of(smooth) as loader:
        assert [plain(tuple(batch)) for batch in batches] == plain_batches(loader)


def test_the_explanation_names_the_partners_and_their_places(smooth):
    with loader_of(smooth) as loader:
        (batch,) = islice(loader, 1)
        explained = loader.explain(0)
        for i, sample in enumerate(explained.samples):
            (pixels,) = explained.images("image", i)
            assert torch.equal(pixels, batch.image[i])
            partners = [crop.partner for crop in sample.crops["image"] if crop.partner]
            assert {number for _, _, number in partners} <= set(explained.partners[i].tolist())
            assert all(key == f"{number:04}" and shard.startswith("smooth-") for shard, key, number in partners)
            covered = np.zeros(SIZE, np.bool_)
            for crop in sample.crops["image"]:
                (left, top), (height, width) = crop.place, crop.size
                assert not covered[top : top + height, left : left + width].any()
                covered[top : top + height, left : left + width] = True
            assert (pixels.numpy()[:, ~covered] == 114).all()
            assert covered.mean() > 0.2
        assert "(id " in str(explained)
        state = loader.state_dict()
    with loader_of(smooth) as other:
        other.load_state_dict(state)
        assert str(other.explain(0)) == str(explained)


def test_a_ban_or_new_weights_change_no_earlier_mosaic_and_banned_samples_are_no_partners(smooth):
    for change in ("ban", "weights", "both"):  # all within the first samples, which have each other as partners
        with loader_of(smooth, batch_size=4) as loader:
            delivered = [batch.image for batch in islice(loader, 4)]
            before = [loader.explain(step) for step in range(10)]
            state = loader.state_dict()
        shown = {number for explained in before for number in explained.partners[:, 0].tolist()}
        ban = sorted(shown)[::3] if change != "weights" else []
        with loader_of(smooth, batch_size=4, ban=ban and [f"{number:04}" for number in ban]) as loader:
            loader.load_state_dict(state)
            if change != "ban":
                loader.reweight(classes={"1": 3.0})
            delivered += [batch.image for batch in islice(loader, 2)]
            for step, images in enumerate(delivered):
                after = loader.explain(step)
                if step < 4:
                    assert str(after) == str(before[step])
                assert all(torch.equal(after.images("image", i)[0], image) for i, image in enumerate(images))
            later = [loader.explain(step, rank=0) for step in range(4, 7)]
            assert not {number for one in later for number in one.partners.ravel().tolist()} & set(ban)
            assert any((one.partners != before[step].partners).any() for step, one in enumerate(later, 4))


@pytest.fixture(scope="module")
def damaged(smooth, tmp_path_factory):
    """Return a copy in which the image of sample 0007 cannot be decoded."""
    folder = tmp_path_factory.mktemp("damaged")
    with wt.make_loader(smooth, batch_size=40, num_workers=0, fields=("json", "__key__")) as stored:
        (whole,) = stored
    with wt.ShardWriter(str(folder / "a-%06d.tar")) as writer:
        for info, key in zip(whole[0], whole[1], strict=True):
            data = encode(Image.effect_noise((80, 60), int(key)).convert("RGB"), "JPEG")
            data = data[: 3 * len(data) // 4] + b"\xff\xd9" if key == "0007" else data
            writer.write({"__key__": key, "jpg": data, "json": info, "cls": 1})
    return folder


VISIBLE = {"image": wt.Image(view=wt.Mosaic(64, scale=(0.3, 0.4), translate=0)), "key": wt.Key()}


def test_an_unreadable_partner_is_an_error_that_names_it(damaged):
    with loader_of(damaged, VISIBLE, batch_size=4) as loader, pytest.raises(DecodeError, match="0007"):
        list(loader)


@pytest.mark.torture
def test_an_unreadable_partner_is_replaced_and_the_sample_stays(damaged, caplog):
    results = []
    for options in ({}, {"num_workers": 2}, {"num_workers": 2, "batch_size": 4}):
        with loader_of(damaged, VISIBLE, on_error="replace", max_errors=2, **options) as loader:
            batches = list(loader)
            assert [bad.key for bad in loader.errors] == ["0007"] * len(loader.errors)
            assert len(loader.errors) <= 2  # once as a partner and once as the sample
            assert loader.epoch_proof().ok
            assert loader.epoch_proof().replaced.samples == 1
        results.append(([key for batch in batches for key in batch.key], torch.cat([batch.image for batch in batches])))
    keys, images = results[0]
    assert set(keys) == {f"{number:04}" for number in range(40)} - {"0007"}
    for other_keys, other_images in results[1:]:
        assert other_keys == keys
        assert torch.equal(other_images, images)


def test_a_schedule_ends_the_mosaics(smooth):
    specs = {**SPECS, "image": wt.Image(view=wt.Schedule({0: MOSAIC, 1: wt.Letterbox(SIZE)}))}
    with loader_of(smooth, specs, num_workers=1) as loader:
        (first, last) = ([len(batch.points[0]) for batch in loader] for _ in range(2))
        assert set(first) == {8}
        assert set(last) == {2}
        assert all(len(sample.crops["image"]) == 1 for sample in loader.explain(0, epoch=1).samples)


@pytest.mark.parametrize(
    "options",
    [
        {"scale": (0, 1)},
        {"scale": 1},
        {"translate": -1},
        {"flip": 2},
        {"fill": 300},
        {"p": 1.5},
        {"size": "big"},
        {"tiles": 5},
    ],
)
def test_an_invalid_mosaic_is_an_error_with_the_allowed_values(options):
    with pytest.raises(OptionError, match="allowed are"):
        wt.Mosaic(**{"size": 64, **options})


def test_a_mosaic_cannot_be_one_of_several_views_or_of_a_clip(smooth):
    for spec in (wt.Image(view=[MOSAIC, wt.Letterbox(64)]), wt.Frames("*.jpg", frames=1, view=MOSAIC)):
        with pytest.raises(OptionError, match="Mosaic"):
            loader_of(smooth, {"image": spec})


def test_arrays_of_different_types_cannot_share_an_image(tmp_path):
    with wt.ShardWriter(str(tmp_path / "a-%06d.tar")) as writer:
        for number in range(4):
            depth = np.zeros((20, 20, 1 + number % 2), np.float32)
            image = encode(Image.new("RGB", (20, 20)), "JPEG")
            writer.write({"__key__": f"k{number}", "jpg": image, "depth.npy": depth, "cls": 0})
    specs = {"image": wt.Image(view=wt.Mosaic(16)), "depth": wt.Array("depth.npy", like="image")}
    with loader_of(tmp_path, specs, batch_size=4) as loader, pytest.raises(DecodeError, match="channels"):
        list(loader)

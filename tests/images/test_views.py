"""Views: their geometry compared with torchvision."""

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torchvision.transforms import v2

from wds_tools.errors import OptionError
from wds_tools.images.views import CenterCrop, RandomResizedCrop, Resize
from wds_tools.order.keyed_random import uniform

SIDES = st.integers(1, 3000)


def regions_of(view, width, height, position=0):
    u = uniform(9, np.array([position]), view.draws)
    return view.regions(np.array([width]), np.array([height]), u)


class _FixedDraws:
    """Replaces torch's random functions, so that torchvision's code uses given numbers."""

    def __init__(self, u):
        self.areas, self.aspects, self.corner = u[:10], u[10:20], u[20:22]
        self.calls, self.attempt = 0, -1

    def uniform(self, low, high):
        self.calls += 1
        if self.calls % 2:
            self.attempt += 1
            return low + self.areas[self.attempt] * (high - low)
        return low + self.aspects[self.attempt] * (high - low)

    def randint(self, low, high, axis):
        return int(low + np.floor(self.corner[axis] * (high - low)))


@given(SIDES, SIDES, st.integers(0, 10**9), st.sampled_from([(0.08, 1.0), (0.35, 1.0), (0.9, 1.0)]))
def test_random_resized_crop_is_the_crop_of_torchvision_for_the_same_random_numbers(width, height, position, scale):
    view = RandomResizedCrop(224, scale=scale)
    u = uniform(9, np.array([position]), view.draws)[0]
    fixed = _FixedDraws(u)
    ours = view.regions(np.array([width]), np.array([height]), u[None]).box[0].tolist()

    theirs = v2.RandomResizedCrop(224, scale=scale, antialias=True)
    with pytest.MonkeyPatch.context() as patch:
        draws = iter([])

        class Empty:
            def uniform_(self, low, high):
                return torch.tensor([fixed.uniform(low, high)], dtype=torch.float64)

        # torchvision draws the row first, then the column; the view has the column first.
        def randint(low, high, size):
            nonlocal draws
            axis = next(draws, None)
            if axis is None:
                draws = iter([0])
                axis = 1
            return torch.tensor([fixed.randint(low, high, axis)])

        patch.setattr(torch, "empty", lambda *_, **__: Empty())
        patch.setattr(torch, "randint", randint)
        make_params = getattr(theirs, "make_params", None) or theirs._get_params  # noqa: SLF001 - torchvision < 0.21
        found = make_params([torch.zeros(3, 1, 1).expand(3, height, width)])
    assert ours == [found["left"], found["top"], found["width"], found["height"]]


@given(SIDES, SIDES, st.integers(0, 10**9), st.sampled_from([(3 / 4, 4 / 3), (2, 3), (0.1, 0.2)]))
@example(1, 50, 0, (2, 3))
@example(50, 1, 0, (0.1, 0.2))
def test_random_resized_crop_stays_inside_the_image(width, height, position, ratio):
    left, top, w, h = regions_of(RandomResizedCrop(224, ratio=ratio), width, height, position).box[0].tolist()
    assert 0 <= left <= left + w <= width
    assert 0 <= top <= top + h <= height
    assert w > 0
    assert h > 0


def test_crops_cover_the_range_of_areas_and_half_of_them_are_flipped():
    view = RandomResizedCrop(224, flip=True)
    n = 20_000
    found = view.regions(np.full(n, 500), np.full(n, 400), uniform(1, np.arange(n), view.draws))
    area = found.box[:, 2] * found.box[:, 3] / (500 * 400)
    assert 0.07 < area.min() < 0.1
    assert area.max() <= 1
    assert abs(found.flip.mean() - 0.5) < 0.02
    assert not view.__class__(224).regions(np.full(n, 9), np.full(n, 9), uniform(1, np.arange(n), 23)).flip.any()


@given(st.integers(16, 1000), st.integers(16, 1000), st.sampled_from([16, 64, 224]))
def test_resize_of_the_shorter_side_has_the_size_of_torchvision(width, height, side):
    theirs = v2.functional.resize(torch.zeros(3, 1, 1, dtype=torch.uint8).expand(3, height, width), [side]).shape[1:]
    assert tuple(regions_of(Resize(side), width, height).size[0]) == tuple(theirs)


@given(st.integers(60, 700), st.integers(60, 700), st.sampled_from([(32, 40), (48, 48), (57, 64)]))
def test_center_crop_has_the_position_of_torchvision(width, height, sizes):
    crop, resize = sizes
    rows = torch.arange(height)[:, None].expand(height, width)
    columns = torch.arange(width)[None].expand(height, width)
    grid = torch.stack([rows, columns])  # each pixel holds its own position
    scaled = v2.functional.resize(grid.float(), [resize], antialias=True).shape[1:]
    found = regions_of(CenterCrop(crop, resize=resize), width, height)
    assert tuple(found.resize[0]) == tuple(scaled)
    index = torch.stack(torch.meshgrid(torch.arange(scaled[0]), torch.arange(scaled[1]), indexing="ij"))
    theirs = v2.functional.center_crop(index, [crop, crop])
    assert found.corner[0].tolist() == theirs[:, 0, 0].tolist()


def test_an_image_has_the_same_region_alone_and_in_a_batch():
    view = RandomResizedCrop(64, flip=True)
    widths, heights = np.arange(100, 150), np.arange(250, 200, -1)
    together = view.regions(widths, heights, uniform(5, np.arange(50), view.draws))
    for i in (0, 17, 49):
        alone = view.regions(widths[i : i + 1], heights[i : i + 1], uniform(5, np.array([i]), view.draws))
        assert (alone.box[0] == together.box[i]).all()
        assert alone.flip[0] == together.flip[i]


@pytest.mark.parametrize(
    "make",
    [
        lambda: RandomResizedCrop(0),
        lambda: RandomResizedCrop((224,)),
        lambda: RandomResizedCrop(224, scale=(0.5, 0.2)),
        lambda: RandomResizedCrop(224, scale=(0, 1)),
        lambda: RandomResizedCrop(224, ratio=(0, 1)),
        lambda: RandomResizedCrop(224, flip=1.5),
        lambda: CenterCrop(256, resize=224),
        lambda: Resize(-3),
        lambda: Resize("big"),
        lambda: Resize(None),
        lambda: Resize(True),
        lambda: RandomResizedCrop(224.0),
        lambda: RandomResizedCrop(224, scale=0.5),
        lambda: RandomResizedCrop(224, scale=(0.5,)),
        lambda: RandomResizedCrop(224, scale=("a", "b")),
        lambda: RandomResizedCrop(224, ratio=None),
        lambda: RandomResizedCrop(224, flip="yes"),
        lambda: RandomResizedCrop(224, flip=None),
        lambda: CenterCrop(224, resize="256"),
        lambda: CenterCrop(224, resize=256.0),
    ],
)
def test_an_invalid_view_is_an_error_with_the_allowed_values(make):
    with pytest.raises(OptionError, match="allowed are"):
        make()


def test_sizes_may_be_numpy_numbers_and_lists():
    side = np.int64(32)
    assert RandomResizedCrop(side, flip=np.True_).shape == CenterCrop([side, 32], resize=side).shape == (32, 32)
    assert Resize([side, 48]).shape == (32, 48)
    assert Resize(side).shape is None
    assert regions_of(Resize(side), 64, 96).size.tolist() == [[48, 32]]

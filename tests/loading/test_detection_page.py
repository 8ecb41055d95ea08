"""The code of docs/detection.md runs from top to bottom; the detector, which takes seconds, is another one."""

import re
from pathlib import Path

import torch
from annotated_trees import tree_of

import wds_tools as wt

PAGE = Path(__file__).parents[2] / "docs" / "detection.md"
DETECTOR = "from torchvision.models.detection import fasterrcnn_mobilenet_v3_large_fpn"


class Detector(torch.nn.Linear):
    """Takes what torchvision's detectors take."""

    def __init__(self, *, num_classes, **_):
        super().__init__(1, 1)
        self.num_classes, self.seen = num_classes, []

    def forward(self, images, targets):
        assert len(images) == len(targets) == 2
        for image, target in zip(images, targets, strict=True):
            assert image.shape == (3, 64, 64)
            assert target["boxes"].shape == (len(target["labels"]), 4)
            assert ((target["labels"] > 0) & (target["labels"] < self.num_classes)).all()
            self.seen.append(len(target["boxes"]))
        return {"loss": self.weight.sum()}


def test_the_code_on_the_page_runs(tmp_path, monkeypatch, capsys):
    src = tree_of(tmp_path / "coco", "coco/datumaro_instances_poly", "images/{split}/{name}")
    wt.pack_splits(src, tmp_path / "shards/coco", split="folders", progress=False)
    monkeypatch.chdir(tmp_path)
    code = "".join(re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL))
    assert DETECTOR in code
    small = code.replace(DETECTOR, "").replace("SIZE = 300, 640", "SIZE = 300, 64")
    small = small.replace("batch_size=16", "batch_size=2").replace(
        "make_loader(", "make_loader(num_workers=0, dataset="
    )
    names = {"__name__": "__main__", "fasterrcnn_mobilenet_v3_large_fpn": Detector}
    exec(compile(small, str(PAGE), "exec"), names)
    out = capsys.readouterr().out
    assert out.startswith("torch.Size([2, 3, 64, 64]) torch.Size([")
    assert out.endswith("\n2\n")
    assert names["names"] == ("cat", "dog", "fig tree")
    assert sum(names["model"].seen) > 2

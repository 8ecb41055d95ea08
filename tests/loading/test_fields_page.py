"""The code of docs/fields.md runs from top to bottom."""

import re
from pathlib import Path

import torch

PAGE = Path(__file__).parents[2] / "docs" / "fields.md"


def test_the_code_on_the_page_runs(scenes, tmp_path, monkeypatch, capsys):
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "scenes").symlink_to(scenes)
    monkeypatch.chdir(tmp_path)
    code = "".join(re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL))
    assert code.count("make_loader") >= 2
    code = code.replace("make_loader(", "make_loader(num_workers=0, dataset=")
    names = {"__name__": "__main__"}
    exec(compile(code, str(PAGE), "exec"), names)
    assert "torch.Size([8, 3, 224, 224]) torch.Size([8, 224, 224]) torch.uint16 8" in capsys.readouterr().out
    assert torch.is_tensor(names["right"])
    assert [len(crop) for crop in names["crops"]] == [8] * 10
    assert names["clips"].shape == (4, 8, 3, 112, 112)
    assert names["padded"].keys() == {"image", "mask", "boxes", "classes", "caption"}

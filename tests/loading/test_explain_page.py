"""The code of docs/explain.md runs from top to bottom."""

import re
from pathlib import Path

import pytest

from wds_tools.cli import main

PAGE = Path(__file__).parents[2] / "docs" / "explain.md"


def test_the_code_on_the_page_runs(packed, tmp_path, monkeypatch, capsys):
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "photos").symlink_to(packed)
    monkeypatch.chdir(tmp_path)
    code = "".join(re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL))
    assert "ban=banned" in code
    exec(compile(code, str(PAGE), "exec"), {"__name__": "__main__"})
    out = capsys.readouterr().out
    assert "step 0: epoch 0, 8 samples" in out
    assert out.endswith("397\n")
    command = re.search(r"^wds-tools (plan .* --state .*)$", PAGE.read_text(), re.MULTILINE)
    assert command
    with pytest.raises(SystemExit) as end:
        main(command[1].split())
    assert end.value.code == 0
    assert capsys.readouterr().out.startswith("step ")

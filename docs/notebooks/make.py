"""Run the notebooks in this folder and keep what they print: ``python docs/notebooks/make.py [NAME …]``."""

from __future__ import annotations

import io
import json
import os
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def run(path: Path) -> dict[str, Any]:
    """The notebook, its code run in order in a folder of its own, with what that printed."""
    whole: dict[str, Any] = json.loads(path.read_text("utf-8"))
    names: dict[str, Any] = {"__name__": "notebook"}
    here, count = Path.cwd(), 0
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            for cell in whole["cells"]:
                if cell["cell_type"] != "code":
                    continue
                count, printed = count + 1, io.StringIO()
                with redirect_stdout(printed):
                    exec(compile("".join(cell["source"]), f"{path.name}, cell {count}", "exec"), names)
                said = printed.getvalue().splitlines(keepends=True)
                cell["execution_count"] = count
                cell["outputs"] = [{"name": "stdout", "output_type": "stream", "text": said}] if said else []
        finally:
            os.chdir(here)
    return whole


def main() -> None:
    for name in sys.argv[1:] or sorted(path.stem for path in HERE.glob("*.ipynb")):
        path = HERE / f"{name}.ipynb"
        path.write_text(json.dumps(run(path), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(path.name)


if __name__ == "__main__":
    main()

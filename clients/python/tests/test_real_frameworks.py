"""The programs of clients/python/frameworks, with the frameworks that are installed: what is sent is what they did."""

import importlib.machinery
import importlib.util
import sys

import pytest
from conftest import CLIENT

_loader = importlib.machinery.SourceFileLoader("frameworks", str(CLIENT / "frameworks"))
frameworks = importlib.util.module_from_spec(importlib.util.spec_from_loader("frameworks", _loader))
_loader.exec_module(frameworks)


@pytest.mark.parametrize("framework", frameworks.FRAMEWORKS, ids=lambda each: each.name.replace(" ", "-"))
def test_what_is_sent_is_what_the_program_did(framework, tmp_path):
    if importlib.util.find_spec(framework.module) is None:
        pytest.skip("%s is not installed" % framework.module)
    row = frameworks.examine(sys.executable, framework, tmp_path)
    cells = dict(zip(frameworks.COLUMNS, row[1:]))
    assert "does not run" not in cells["steps"], cells
    assert not [cell for cell in cells.values() if "**" in cell], cells
    for column in ("steps", "tokens", "samples", "rank"):
        assert cells[column] == "yes", cells
    without = {column for column, cell in cells.items() if cell.startswith("no")}
    assert without <= set(framework.no), cells

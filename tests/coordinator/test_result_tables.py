"""Tables of results: NumPy's numbers are written as Python's are."""

import json
from dataclasses import dataclass

import numpy as np

from capedjica.algorithms.analysis import Result, ResultTable
from capedjica.coordinator.run.results import _write_result
from capedjica.coordinator.run.run_folder import RunFolder


@dataclass(frozen=True, eq=False)
class Numbers(Result):
    def tables(self):
        rows = [("1", np.float64(0.5), np.int64(3)), ("2", np.float32("nan"), None)]
        return [ResultTable("numbers", "Some numbers.", ["number", "value", "count"], rows)]


def test_numbers_of_numpy_are_written(tmp_path):
    names = _write_result(RunFolder(tmp_path), None, "", Numbers(), "")
    assert names == ["numbers.csv", "tables.json"]
    (table,) = json.loads((tmp_path / "tables.json").read_text())
    assert table["rows"] == [["1", 0.5, 3], ["2", None, None]]
    assert (tmp_path / "numbers.csv").read_text().splitlines()[1] == "1,0.5,3"

"""The test of the cluster itself goes first: it needs the machine's only cluster, which the session then holds."""

from __future__ import annotations

from typing import List

import pytest


def pytest_collection_modifyitems(items: List[pytest.Item]) -> None:
    items.sort(key=lambda item: "tests/cluster/" not in item.nodeid)  # stable: the rest stays in order

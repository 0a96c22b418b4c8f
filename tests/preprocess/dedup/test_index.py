"""The index orders its outputs: making one of them again is no reason to make the others again."""

from __future__ import annotations

import pytest

from preprocess.dedup import Round
from preprocess.dedup.documents import Duplicates, NearDuplicates
from tests.preprocess.dedup.compared import compare, documents


@pytest.mark.parametrize("kind", [Duplicates, NearDuplicates])
def test_an_output_depends_on_those_before_it_alone(tmp_path, kind):
    """Names in an order that is not that of their hashes; the first is made again after the others came."""
    comparison = kind(index=str(tmp_path / "index"))

    def run(name, texts):
        folder = tmp_path / name
        kept, tally = compare(folder, comparison, [documents(texts)], output=f"/data/{name}")
        comparison.remember(Round(folder, 1, 1 << 20, f"/data/{name}"), f"stamp of {texts}")
        return [document.text for document in kept], [why.detail for _, why in tally.aside]

    names = ["z", "a", "m", "b"]
    for number, name in enumerate(names):
        assert run(name, ["common", f"own {name}"])[0] == (["common"] if number == 0 else []) + [f"own {name}"]
    states = {name: comparison.state(f"/data/{name}") for name in names}
    assert len(set(states.values())) == len(names)

    assert run("z", ["common", "own z", "own b"]) == (["common", "own z", "own b"], []), "later outputs do not count"
    assert comparison.state("/data/z") == states["z"], "the same command would never come to an end"
    assert all(comparison.state(f"/data/{name}") != states[name] for name in names[1:])
    assert run("b", ["own b", "new"]) == (["new"], ["of /data/z: d2"])
    assert comparison.state("/data/b") != comparison.state("/data/new")

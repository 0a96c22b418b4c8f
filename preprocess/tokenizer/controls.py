"""A tokenizer.json without its control tokens: what makes ids of text with it cannot make one of them."""

from __future__ import annotations

from typing import Any, Collection, Dict

_NONE = "\ufdd0"  # a code point that is no character, so no text holds the new names


def without(content: Dict[str, Any], controls: Collection[str]) -> Dict[str, Any]:
    """`content` with no control token to look for, and none that its model could make of text; all ids stay.

    <unk> stays as well, where the model needs its name.
    """
    model = dict(content["model"])
    kept = model.get("unk_token")

    def renamed(name: str, number: int) -> str:
        return f"{_NONE}{number}" if name in controls and name != kept else name

    if isinstance(model["vocab"], dict):
        model["vocab"] = {renamed(name, number): number for name, number in model["vocab"].items()}
    else:  # Unigram: [text, score] in the order of ids
        model["vocab"] = [[renamed(name, i), score] for i, (name, score) in enumerate(model["vocab"])]
    if "merges" in model:  # [left, right], or "left right" in older files
        model["merges"] = [
            merge
            for merge in model["merges"]
            if (merge.replace(" ", "") if isinstance(merge, str) else "".join(merge)) not in controls
        ]
    added = [token for token in content.get("added_tokens") or [] if token["content"] not in controls]
    return {**content, "model": model, "added_tokens": added}

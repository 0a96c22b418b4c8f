"""python -m preprocess.augment.seq2seq FOLDER SOURCE TARGET: lines of JSON [text, ...] in, [text or null, ...] out.

Run by `local.py`. Greedy, so the same text gives the same translation. null: the text is longer than the model takes,
or its translation came to no end.
"""

from __future__ import annotations

import json
import sys
from typing import Any, Dict, List, Optional

_TOGETHER = 16  # texts translated at a time
_LONGER = 3  # a translation has at most so many times the tokens of its text, and _ROOM
_ROOM = 20


class Model:
    def __init__(self, folder: str, source: str, target: str) -> None:
        from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        self._model: Any = AutoModelForSeq2SeqLM.from_pretrained(folder, local_files_only=True).eval()
        self._limit = getattr(self._model.config, "max_position_embeddings", None) or self._tokenizer.model_max_length
        self._settings: Dict[str, Any] = {"do_sample": False, "num_beams": 1}
        if source and hasattr(self._tokenizer, "src_lang"):  # many languages in one model (NLLB, M2M100, mBART)
            self._tokenizer.src_lang = source
            self._settings["forced_bos_token_id"] = self._tokenizer.convert_tokens_to_ids(target)

    def __call__(self, texts: List[str]) -> List[Optional[str]]:
        out: List[Optional[str]] = [None] * len(texts)
        lengths = [len(ids) for ids in self._tokenizer(texts).input_ids]
        fitting = [
            place for place in sorted(range(len(texts)), key=lengths.__getitem__) if lengths[place] <= self._limit
        ]
        for start in range(0, len(fitting), _TOGETHER):
            places = fitting[start : start + _TOGETHER]
            for place, text in zip(places, self._translate([texts[place] for place in places])):
                out[place] = text
        return out

    def _translate(self, texts: List[str]) -> List[Optional[str]]:
        inputs = self._tokenizer(texts, return_tensors="pt", padding=True)
        room = min(self._limit - 1, _LONGER * inputs.input_ids.shape[1] + _ROOM)
        ids = self._model.generate(
            input_ids=inputs.input_ids, attention_mask=inputs.attention_mask, max_new_tokens=room, **self._settings
        )
        ended = (ids[:, 1:] == self._tokenizer.eos_token_id).any(dim=1).tolist()
        decoded = self._tokenizer.batch_decode(ids, skip_special_tokens=True)
        return [text if whole else None for text, whole in zip(decoded, ended)]


def main() -> None:
    answers, sys.stdout = sys.stdout, sys.stderr  # whatever libraries print is no answer
    model = Model(*sys.argv[1:4])
    for line in sys.stdin:
        print(json.dumps(model(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()

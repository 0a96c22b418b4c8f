"""A translator behind an OpenAI-compatible endpoint: POST <address>/chat/completions."""

from __future__ import annotations

import http.client
import json
import os
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, List, Optional

_LATER = (408, 409, 425, 429)  # and all from 500 on: the same request may succeed later
_LONGEST_WAIT = 60.0  # seconds


@dataclass(frozen=True)
class Endpoint:
    """texts -> texts, in the same order; None for one whose answer was cut short. `prompt` holds {text}.

    key_variable names the environment variable that holds the key. Waits `wait_seconds`, then twice as long each time,
    between attempts. Raises ConnectionError when the last one fails, ValueError when the server refuses the request.
    """

    url: str
    model: str
    prompt: str
    key_variable: str
    timeout_seconds: float
    retries: int
    wait_seconds: float
    at_a_time: int

    def __call__(self, texts: List[str]) -> List[Optional[str]]:
        with ThreadPoolExecutor(self.at_a_time) as pool:
            return list(pool.map(self._one, texts))

    def _one(self, text: str) -> Optional[str]:
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": self.prompt.replace("{text}", text)}],
            "temperature": 0,
        }
        reason = ""
        for attempt in range(self.retries + 1):
            if attempt:
                time.sleep(min(self.wait_seconds * 2 ** (attempt - 1), _LONGEST_WAIT))
            try:
                return _answer(self._post(json.dumps(body).encode()))
            except urllib.error.HTTPError as error:
                reason = f"HTTP {error.code} {error.reason}: {error.read()[:500].decode('utf-8', 'replace')}"
                if error.code < 500 and error.code not in _LATER:
                    raise ValueError(f"{self._address} refuses a request for model {self.model!r}: {reason}") from None
            except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError) as error:
                reason = f"{type(error).__name__}: {error}"
        raise ConnectionError(f"{self._address} gave no translation in {self.retries + 1} attempts: {reason}")

    @property
    def _address(self) -> str:
        return f"{self.url.rstrip('/')}/chat/completions"

    def _post(self, body: bytes) -> Any:
        headers = {"Content-Type": "application/json"}
        if self.key_variable:
            headers["Authorization"] = f"Bearer {os.environ[self.key_variable]}"
        request = urllib.request.Request(self._address, body, headers)
        with urllib.request.urlopen(request, timeout=self.timeout_seconds) as response:
            return json.loads(response.read())


def _answer(response: Any) -> Optional[str]:
    choice = response["choices"][0]
    text = choice["message"]["content"]
    if not isinstance(text, str):
        raise TypeError(f"the answer's content is {type(text).__name__}")
    return text.strip("\n") if choice.get("finish_reason") != "length" else None

"""There and back: by a server that imitates the endpoint, and by a tiny model of random weights in its own process."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading

import pytest

from preprocess.augment import local
from preprocess.augment.back_translation import BackTranslation
from preprocess.augment.local import Local
from preprocess.augment.seq2seq import Model
from preprocess.pipeline import Tally
from preprocess.steps import STEPS
from tests.preprocess.augment.conftest import documents

TEXT = "The quick brown fox jumps over the lazy dog."
GERMAN = "Der schnelle braune Fuchs."


class Server:
    """answers: what the next requests get, in order: a text, (status, body), or bytes to send as they are."""

    def __init__(self):
        self.answers, self.requests = [], []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.requests.append((self.path, json.loads(body), dict(self.headers)))
                answer = outer.answers.pop(0) if len(outer.answers) > 1 else outer.answers[0]
                status, content = answer if isinstance(answer, tuple) else (200, answer)
                if isinstance(content, str) and status == 200:
                    choice = {"message": {"role": "assistant", "content": content}, "finish_reason": "stop"}
                    content = json.dumps({"choices": [choice]})
                self.send_response(status)
                self.end_headers()
                self.wfile.write(content if isinstance(content, bytes) else content.encode())

            def log_message(self, *arguments):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/v1"


@pytest.fixture
def server():
    made = Server()
    thread = threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.server.shutdown()
    made.server.server_close()
    thread.join()


def step(server, **settings):
    settings = {"source": "English", "target": "German", "model": "m", "check_language": False, **settings}
    url = {"forward": server.url, "backward": server.url, "wait_seconds": 0.0, "at_a_time": 1}
    return BackTranslation(**{"max_share": 0.5, **url, **settings})


def run(one, *texts):
    tally = Tally()
    return one.open()(documents(*texts or (TEXT,)), tally), dict(tally.changed)


def test_a_variant_is_what_came_back_and_names_its_original(server):
    server.answers = [GERMAN, "A quick brown fox leaps over the lazy dog.\n"]
    out, counts = run(step(server))
    assert [document.text for document in out] == [TEXT, "A quick brown fox leaps over the lazy dog."]
    assert out[1].metadata == {"parent": "d0", "augmented": "back_translation"} and counts == {"augmented": 1}
    (path, there, headers), (_, back, _) = server.requests
    assert path == "/v1/chat/completions" and there["model"] == "m" and "Authorization" not in headers
    assert "from English to German" in there["messages"][0]["content"] and TEXT in there["messages"][0]["content"]
    assert "from German to English" in back["messages"][0]["content"] and GERMAN in back["messages"][0]["content"]


def test_prompt_and_key_are_settings(server, monkeypatch):
    monkeypatch.setenv("SOME_KEY", "k")
    server.answers = ["there", "back"]
    run(step(server, prompt="{source}>{target}: {text}", key_variable="SOME_KEY"), "say {target} now")
    (_, body, headers), _ = server.requests
    assert body["messages"][0]["content"] == "English>German: say {target} now"
    assert headers["Authorization"] == "Bearer k"


@pytest.mark.parametrize(
    "back, reason",
    [
        ("  ", "empty"),
        ("The fox.", "length"),
        (TEXT * 3, "length"),
        ("the quick brown fox -- jumps over the lazy dog!!", "nothing changed"),
        ("Lorem ipsum dolor sit amet consectetur elit", "too much changed"),
        ("The quick brown fox nicht jumps over a lazy dog.", "language changed"),
    ],
)
def test_what_does_not_say_the_same_is_refused_and_counted(back, reason, server, english_unless_told):
    server.answers = [GERMAN, back]
    out, counts = run(step(server, check_language=True))
    assert counts == {f"not augmented: {reason}": 1} and [document.text for document in out] == [TEXT]


def test_an_answer_cut_short_is_no_translation_and_the_others_keep_their_places(server):
    cut = json.dumps({"choices": [{"message": {"content": "The"}, "finish_reason": "length"}]}).encode()
    server.answers = [cut, GERMAN, "A quick brown fox jumps over lazy dogs."]
    out, counts = run(step(server), TEXT, TEXT + " Well.")
    assert counts == {"not augmented: not translated whole": 1, "augmented": 1}
    assert [document.id for document in out] == ["d0", "d1", "d1/back_translation-1"]


@pytest.mark.parametrize(
    "bad", [(500, "busy"), (429, "slow down"), b"no json", b"{}", b'{"choices": [{"message": {}}]}']
)
def test_a_failure_that_may_pass_is_tried_again(bad, server):
    server.answers = [bad, bad, GERMAN, "A quick brown fox leaps over the lazy dog."]
    _, counts = run(step(server, retries=2))
    assert counts == {"augmented": 1} and len(server.requests) == 4


def test_a_server_that_goes_on_failing_ends_the_run_with_address_and_reason(server):
    server.answers = [(503, "no model loaded")]
    with pytest.raises(OSError, match=rf"{server.url}/chat/completions .* 3 attempts: HTTP 503 .*no model loaded"):
        run(step(server, retries=2))
    assert len(server.requests) == 3


def test_waits_grow_between_attempts(server, monkeypatch):
    waits = []
    monkeypatch.setattr("time.sleep", waits.append)
    server.answers = [(503, "")]
    with pytest.raises(OSError):
        run(step(server, retries=8, wait_seconds=1.0))
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]


def test_a_request_that_is_refused_is_the_users_and_not_repeated(server):
    server.answers = [(404, "no model m")]
    with pytest.raises(ValueError, match="refuses a request for model 'm': HTTP 404 .*no model m"):
        run(step(server))
    assert len(server.requests) == 1


def test_nobody_listening_names_the_address():
    url = "http://127.0.0.1:9/v1"
    one = BackTranslation(url, url, 0.5, prompt="{text}", model="m", retries=0, check_language=False)
    with pytest.raises(OSError, match=f"{url}/chat/completions"):
        run(one)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"forward": ""}, "forward is empty"),
        ({"model": ""}, "model is empty"),
        ({"target": ""}, "source or target is empty"),
        ({"prompt": "translate"}, "has no {text}"),
        ({"key_variable": "NOT_SET_ANYWHERE"}, "no NOT_SET_ANYWHERE"),
        ({"retries": -1}, "retries=-1"),
        ({"forward": "/nowhere"}, "no folder of a model"),
        ({"max_share": 0.9}, "max_share=0.9"),
    ],
)
def test_settings_that_cannot_work_are_refused_before_anything_is_sent(settings, message, server):
    with pytest.raises(ValueError, match=message):
        step(server, **settings).open()
    assert not server.requests


# --- a model's folder --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def make_model(tmp_path_factory):
    """make_model(favourite token) -> a folder of a tiny MarianMT whose every word is that one."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import MarianConfig, MarianMTModel, PreTrainedTokenizerFast

    def make(favourite):
        folder = tmp_path_factory.mktemp("model")
        words = ["<pad>", "</s>", "<unk>", "the", "fox"]
        library = Tokenizer(models.WordLevel({word: place for place, word in enumerate(words)}, "<unk>"))
        library.pre_tokenizer = pre_tokenizers.Whitespace()
        named = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
        PreTrainedTokenizerFast(tokenizer_object=library, **named).save_pretrained(folder)
        size = {"d_model": 8, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8}
        heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "max_position_embeddings": 16}
        ids = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0, "forced_eos_token_id": None}
        torch.manual_seed(0)
        model = MarianMTModel(MarianConfig(vocab_size=5, **size, **heads, **ids))
        model.final_logits_bias[0, words.index(favourite)] = 1e4
        model.save_pretrained(folder)
        return str(folder)

    return make


@pytest.fixture(scope="module")
def silent(make_model):
    return make_model("</s>")


def test_a_local_model_runs_in_its_own_process_and_its_garbage_is_refused(silent):
    out, counts = run(BackTranslation(silent, silent, 0.5, check_language=False), TEXT)
    assert counts == {"not augmented: empty": 1} and len(out) == 1


def test_a_text_too_long_for_the_model_is_not_cut_and_one_without_end_is_no_translation(make_model, silent):
    assert Model(silent, "", "")(["the fox", "fox " * 40, "the"]) == ["", None, ""]
    assert Model(make_model("fox"), "", "")(["the fox"]) == [None]


@pytest.mark.parametrize("when", ["at once", "after reading"])
def test_a_process_that_dies_fails_the_run_with_its_last_words(when, silent, monkeypatch):
    translate = Local(silent, "", "", "{text}")
    read = "sys.stdin.readline(); " * (when == "after reading")
    monkeypatch.setattr(translate, "_command", [sys.executable, "-c", f"import sys; {read}sys.exit('no weights')"])
    with pytest.raises(OSError, match="exit code 1: no weights"):
        translate(["the fox"])


def test_a_model_that_only_continues_texts_is_refused(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(ValueError, match="not a sequence-to-sequence model"):
        Local(str(tmp_path), "", "", "{text}")


def test_sentences_are_translated_once_each_and_white_space_stays(silent, monkeypatch):
    asked = []

    def ask(self, pieces):
        asked.extend(pieces)
        return [piece.upper() for piece in pieces]

    monkeypatch.setattr(local.Local, "_ask", ask)
    translate = Local(silent, "", "", "{text}")
    text = "  One. Two.\n\n\tOne.  Three (x)\n"
    assert translate([text, "Two.", ""]) == [text.upper(), "TWO.", ""]
    assert asked == ["One.", "Two.", "Three (x)"]


def test_the_step_itself_imports_neither_torch_nor_transformers(silent):
    code = (
        "import sys; from preprocess.augment.back_translation import BackTranslation as B; "
        f"B({silent!r}, {silent!r}, check_language=False).open(); print({{'torch', 'transformers'}} & set(sys.modules))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ, check=True)
    assert said.stdout.strip() == "set()"


def test_the_step_has_its_name():
    assert STEPS["back_translation"] == "preprocess.augment.back_translation:BackTranslation"

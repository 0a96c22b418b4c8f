"""llm-preprocess as a user meets it: exit codes, what it prints, signals."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios

import pytest

from preprocess import cli, readers
from preprocess.shards import SUFFIXES
from tests.preprocess.conftest import WORDS, nothing_made, write_jsonl
from tests.preprocess.test_resume import until


@pytest.fixture
def overrides(tmp_path, sentencepiece_model):
    write_jsonl(tmp_path / "in.jsonl", [{"text": WORDS}, {"text": ""}])
    return [
        "data=demo",
        f"data.source.inputs=[{tmp_path}/in.jsonl]",
        f"data.source.output={tmp_path}/out",
        "data.source.workers=1",
        f"data.tokenizer.path={sentencepiece_model}",
        "data.tokenizer.train_vocab_size=0",
    ]


def test_summary(tmp_path, overrides, capsys):
    assert cli.main(overrides) == 0
    out, err = capsys.readouterr()
    assert f"{tmp_path}/out: 1 documents, " in out and " tokens/s, " in out and " MB/s)" in out
    assert "empty: dropped 1 of 2 (empty)" in out and err == "" and "tokenizer: " in out
    made = [*SUFFIXES, ".card.html", ".report.json"]
    assert sorted(path.name for path in tmp_path.glob("out*")) == sorted(f"out{suffix}" for suffix in made)


def test_a_second_time_there_is_nothing_to_do_and_that_is_said(overrides, capsys):
    assert cli.main(overrides) == 0 and "nothing to do" not in capsys.readouterr().err
    assert cli.main(overrides) == 0 and "nothing to do" in capsys.readouterr().err
    assert cli.main([*overrides, "--force", "--no-report"]) == 0
    out, err = capsys.readouterr()
    assert "nothing to do" not in err and "card.html" not in out


def test_json_is_the_manifest(tmp_path, overrides, capsys):
    assert cli.main([*overrides, "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == json.loads((tmp_path / "out.json").read_text())
    assert "1 documents" in err


@pytest.mark.parametrize("wrong, said", [
    ("data.source.input=[a]", "inputs"), ("data=dmeo", "data=demo"), ("data.source.inputs=[gone.jsonl]", "gone.jsonl"),
    ("data.tokenizer.kind=huggingface", "is not a huggingface tokenizer"), ("data.source.text_key=body", "in.jsonl:1"),
])  # fmt: skip
def test_wrong_input_is_exit_2_and_one_line(tmp_path, overrides, capsys, wrong, said):
    assert cli.main([*overrides, wrong]) == 2
    out, err = capsys.readouterr()
    assert said in err and err.startswith("llm-preprocess: ") and "Traceback" not in err and out == ""
    assert nothing_made(tmp_path)


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), ChildProcessError("a worker died"),
                                   MemoryError(), KeyboardInterrupt()])  # fmt: skip
def test_failed_work_is_exit_1(tmp_path, overrides, capsys, monkeypatch, error):
    def broken(part):
        raise error
        yield

    monkeypatch.setattr(readers, "chunks", broken)
    monkeypatch.setattr("preprocess.plan._sample", lambda plan: ())
    assert cli.main(overrides) == 1
    err = capsys.readouterr().err
    assert "the same command goes on" in err and (str(error) or type(error).__name__) in err
    assert nothing_made(tmp_path)


def test_help_has_an_example(capsys):
    with pytest.raises(SystemExit) as exit:
        cli.main(["--help"])
    out = capsys.readouterr().out
    assert exit.value.code == 0 and "llm-preprocess data=demo" in out and "data.source.text_key" in out


@pytest.mark.parametrize("send, number", [(os.kill, signal.SIGTERM), (os.killpg, signal.SIGTERM),
                                          (os.killpg, signal.SIGINT)])  # fmt: skip
@pytest.mark.parametrize("workers", [1, 2])
def test_a_signal_leaves_nothing(tmp_path, overrides, send, number, workers):
    """As kill, Slurm and Ctrl-C stop it, in the middle of the work."""
    write_jsonl(tmp_path / "in.jsonl", [{"text": WORDS}] * 600)
    code = (
        "import signal, sys; from preprocess import cli, readers; from tests.preprocess import steps\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's job in the background ignores it\n"
        "readers.BATCH_RECORDS = 20; steps.register()\n"
        "if __name__ == '__main__': sys.exit(cli.main([*sys.argv[1:], 'data.source.steps=[Slow]']))"
    )
    command = [sys.executable, "-c", code, *overrides, f"data.source.workers={workers}"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    until(lambda: list(tmp_path.glob("pid.*")))
    send(process.pid, number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1 and "the same command goes on" in err and "Traceback" not in err
    assert nothing_made(tmp_path)


def test_a_bar_on_a_terminal_only(tmp_path, overrides):
    """It is wiped at the end, the summary stays; test_summary has seen that a log file gets none."""
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    command = [sys.executable, "-m", "preprocess.cli", *overrides]
    run = subprocess.run(command, stdout=subprocess.PIPE, stderr=child, text=True)
    assert select.select([parent], [], [], 10)[0], "nothing was shown"
    shown = os.read(parent, 65536).decode()
    os.close(child)
    os.close(parent)
    assert run.returncode == 0 and "tokenising" in shown and "1 documents" in run.stdout

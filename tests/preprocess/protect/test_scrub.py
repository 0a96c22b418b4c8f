"""What must go, what must stay, and that order and repetition have no say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preprocess.protect.kinds import KINDS
from tests.preprocess.clean.conftest import through

# Invented, or from the documentation of the format; keys are of the right form and open nothing.
GOES = {
    "write to jane.doe+news@mail.example.co.uk today": "write to <EMAIL> today",
    "mailto:j@x.io,k@y.org": "mailto:<EMAIL>,<EMAIL>",
    "call +49 30 901820 now": "call <PHONE> now",
    "+1 (212) 555-2368": "<PHONE>",
    "ring (212) 555-2368.": "ring <PHONE>.",
    "Tel.: 030/901820": "Tel.: <PHONE>",
    "Tél : 01 42 68 53 00": "Tél : <PHONE>",
    "тел. 8 (495) 123-45-67": "тел. <PHONE>",
    "Teléfono: 91 123 45 67": "Teléfono: <PHONE>",
    "+86 138 1234 5678": "<PHONE>",
    "微信13812345678": "微信<PHONE>",
    "邮箱zhang@qq.com联系": "邮箱<EMAIL>联系",
    "joe@münchen.de": "<EMAIL>",
    "8.8.4.4/24": "<IP_ADDRESS>/24",
    "号54362315K": "号<SPANISH_ID>",
    "NINO AB 12 34 56 C": "NINO <BRITISH_ID>",
    "National Insurance number: AB123456C": "National Insurance number: <BRITISH_ID>",
    "CPF 39053344705": "CPF <BRAZILIAN_ID>",
    "Aadhaar: 234123412346": "Aadhaar: <INDIAN_ID>",
    "AWS_SECRET_ACCESS_KEY=" + "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY": "AWS_SECRET_ACCESS_KEY=<SECRET>",
    "DB_PASSWORD=" + "s3cretPassw0rd": "DB_PASSWORD=<SECRET>",
    "Authorization: Bearer " + "abcdef123456ABCDEF7890": "Authorization: Bearer <SECRET>",
    "redis://:" + "p4ssw0rd@host:6379": "redis://<CREDENTIALS>@host:6379",
    "sk-proj-" + "abc123DEF456ghi789JKL012": "<TOKEN>",
    "-----BEGIN PRIVATE KEY-----\n" + "MIIEpAIBAAKCAQEA1\n" * 3 + "cut short": "<PRIVATE_KEY>\ncut short",
    "-----BEGIN PGP PRIVATE KEY BLOCK-----\n"
    + "lQOYBGJaaaaaaaaaaaaaaa\n" * 2
    + "-----END PGP PRIVATE KEY BLOCK-----": "<PRIVATE_KEY>",
    "电话：13812345678，谢谢": "电话：<PHONE>，谢谢",
    "手机 138 1234 5678": "手机 <PHONE>",
    "from 8.8.8.8, port 53": "from <IP_ADDRESS>, port 53",
    "2a00:1450:4001:82b::200e": "<IP_ADDRESS>",
    "IBAN GB82 WEST 1234 5698 7654 32": "IBAN <IBAN>",
    "card 4111 1111 1111 1111 exp": "card <CARD> exp",
    "378282246310005": "<CARD>",
    "身份证11010519491231002X。": "身份证<CHINESE_ID>。",
    "SSN 536-90-4399": "SSN <AMERICAN_ID>",
    "DNI 54362315K": "DNI <SPANISH_ID>",
    "CPF 390.533.447-05": "CPF <BRAZILIAN_ID>",
    "RCCMNL83S18D969H": "<ITALIAN_ID>",
    "2 95 10 99 126 111 93": "<FRENCH_ID>",
    "Aadhaar 2341 2341 2346": "Aadhaar <INDIAN_ID>",
    "key AKIA" + "IOSFODNN7EXAMPLE here": "key <TOKEN> here",
    "token=ghp_" + "a1B2" * 9: "token=<TOKEN>",
    "hf_" + "AbCdEfGhIjKlMnOpQrStUvWxYzAbCdEfGh 1": "<TOKEN> 1",
    "eyJhbGciOiJIUzI1NiJ9." + "eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJlMTIz": "<TOKEN>",
    'api_key = "' + 'x7Kq92LmZp41"': 'api_key = "<SECRET>"',
    "postgres://admin:s3cr3t@db.internal/x": "postgres://<CREDENTIALS>@db.internal/x",
    "-----BEGIN RSA PRIVATE KEY-----\n" + "MIIEpAIBAAKCAQEA1\n" * 3 + "-----END RSA PRIVATE KEY-----": "<PRIVATE_KEY>",
}
STAYS = [
    "2024-12-31 23:59:59", "978-3-16-148410-0", "ISBN 9783161484100", "pi is 3.14159265358979323846",
    "version 1.2.3.4 of it", "v10.20.30.40", "192.168.0.1 and 127.0.0.1 and 10.1.2.3", "0.1.2.3", "::1", "12:34:56",
    "deadbeefdeadbeefdeadbeefdeadbeef", "d41d8cd98f00b204e9800998ecf8427e", "ZIP 10115 Berlin, 75001 Paris",
    "1234 5678 9012 3456", "4111 1111 1111 1112", "order 11010519491231002", "1,234,567,890.12",
    "GB82 WEST 1234 5698 7654 33",
    "std::vector<int> a::b::c", "@decorator\ndef f(x: int) -> str:", "user@localhost", "me@example.com", "a @ b",
    "password: changeme", "password=os.environ['PASSWORD']", "https://example.org/a:b/c", "call 911", "000-00-0000",
    "OpenSSL 3.0.2.1", "Linux 2.6.18.3", "python-3.11.2.30", "pip==21.30.40.50", "build 12.34.56.78",
    "section\n 5.2.11.31", "8:16:: read", "1:2:3:4:5:6:7:8", "0001:0002:0003:0004:0005:0006:0007:0008",
    "2001:db8::1", "00:0f::",
    "total 14511243264", "runtime=17815800388 [ns]", "13800000000 bytes", "cpu6 2183 1127 1050 6 0 2180",
    "0 1638400 verity 1 8:1 8:2 4096 4096 204800 1 sha256", "255 500 255 0 0 500 0 0 255 500 255 0 0 500 0 0",
    "mobile 2021-12-31", "call 8048310 <printf>", "mobile 5 10 15 20 25", "fax\n\n00000000\t00000fff",
    "password = user.password1", "pwd=/home/user1/dir2", "sk-button-primary-large-disabled", "git@github.com:foo/bar",
    "image@2x.png", "x@property.setter", "func@plt.got", "550e8400-e29b-41d4-a716-446655440000", "AB123456C",
    "18446744073709551615", "the years 1990 1991 1992 1993",
    "matrix 1 2 3 4 5 6 7 8 9 10", "RFC 2616, section 3.2.1.1", "<EMAIL> <PHONE>",
]  # fmt: skip


@pytest.mark.parametrize("text, left", GOES.items(), ids=range(len(GOES)))
def test_what_must_go(text, left):
    document, changed = through("protect", text)
    assert document.text == left and set(changed.values()) == {1}


@pytest.mark.parametrize("text", STAYS)
def test_what_must_stay(text):
    assert through("protect", text)[0].text == text


def test_every_kind_has_an_example():
    found = {kind for text in GOES for kind in through("protect", text)[1]}
    assert found == set(KINDS)


PIECES = st.sampled_from([*GOES, *STAYS, " ", "\n", "1", "a", "@", "+", ".", ":", "-"])


@given(st.lists(PIECES, max_size=6).map("".join))
def test_a_second_time_changes_nothing(text):
    once, _ = through("protect", text)
    again, changed = through("protect", once.text)
    assert again.text == once.text and changed == {}


def test_a_document_becomes_the_same_whatever_stands_before_it():
    """D24: elsewhere replacements take turns through a list, by order."""
    from preprocess.document import Document
    from preprocess.pipeline import Tally
    from preprocess.steps import build

    apply = build(["protect"])[0][1].open()
    one, two = (Document(text, text, {}, "f", 1) for text in ("a@b.com", "c@d.com"))
    results = [apply(documents, Tally()) for documents in ([one, two], [two, one], [two])]
    assert {document.text for documents in results for document in documents if document.id == two.id} == {"<EMAIL>"}


def test_kinds_and_tags_are_settings():
    text = "a@b.io 8.8.8.8"
    assert through({"protect": {"kinds": ["email"]}}, text)[0].text == "<EMAIL> 8.8.8.8"
    assert through({"protect": {"tags": {"email": "[mail]"}}}, text)[0].text == "[mail] <IP_ADDRESS>"


@pytest.mark.parametrize("settings, said", [({"kinds": ["emial"]}, "no kind 'emial'"),
                                            ({"tags": {"email": "x@y.de"}}, "'x@y.de'; a tag has")])  # fmt: skip
def test_wrong_settings(settings, said):
    with pytest.raises(ValueError, match=said):
        through({"protect": settings}, "a")


HOSTILE = [
    "1" * 200_000, "1 " * 100_000, "a@" * 100_000, "a." * 100_000, ":" * 200_000, "+1-" * 60_000, "AKIA" * 50_000,
    "a@b.io 8.8.8.8 " * 20_000, "password=" * 20_000, "-----BEGIN PRIVATE KEY-----" * 8000, "://a:" * 40_000,
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_texts_take_no_more_than_linear_time(text):
    import time

    began = time.process_time()
    through("protect", text)
    assert time.process_time() - began < 3

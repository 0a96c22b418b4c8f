"""What is personal or secret: a pattern that finds candidates, and a check that keeps the real ones.

Numbers that mean a person have check digits (python-stdnum, phonenumbers); with them an order number or a constant of
physics is rarely mistaken for one. Where there is none, the pattern asks for more: a prefix, or a word before it.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections import Counter
from dataclasses import dataclass
from typing import Callable, Dict, Match, Optional, Pattern

from preprocess.protect.places import Finder, Places, near

Check = Callable[[Match[str]], bool]


@dataclass(frozen=True)
class Kind:
    """group 1 of the pattern, or all of it, is replaced by `tag`. where: the only regions of a text to look at."""

    tag: str
    pattern: Pattern[str]
    check: Check = lambda match: True
    where: Finder = Places.dense_digits


def _stdnum(module: str) -> Check:
    def check(match: Match[str]) -> bool:
        import importlib

        return bool(importlib.import_module(f"stdnum.{module}").is_valid(match.group()))

    return check


def _card(match: Match[str]) -> bool:
    """Luhn's digit, and the first digits of a known issuer with its length (ISO/IEC 7812)."""
    from stdnum import luhn

    digits = re.sub(r"\D", "", match.group())
    issuers = {16: r"4|5[1-5]|2[2-7]|6011|65|35|62", 15: r"3[47]", 14: r"3[0689]", 13: "4", 19: r"62|4"}
    pattern = issuers.get(len(digits))
    return pattern is not None and bool(re.match(pattern, digits)) and luhn.is_valid(digits)


def _phone(region: Optional[str]) -> Check:
    def check(match: Match[str]) -> bool:
        import phonenumbers

        try:
            number = phonenumbers.parse(match.group(1) if match.lastindex else match.group(), region)
        except phonenumbers.NumberParseException:
            return False
        return phonenumbers.is_valid_number(number)

    return check


def _public_address(match: Match[str]) -> bool:
    """Private and documentation addresses mean no one. 1.2.3.4 after "version" is a version, and 0.x no address."""
    try:
        address = ipaddress.ip_address(match.group())
    except ValueError:
        return False
    before = match.string[max(0, match.start() - 12) : match.start()].lower()
    is_version = re.search(r"(?:version|ver\.?|v|release|section|chapter|§)[\s.]*$", before)
    return address.is_global and not (address.version == 4 and is_version)


def _random(match: Match[str]) -> bool:
    """At least 3 bits a character (Shannon), letters and digits: a password somebody uses, not `password=changeme`."""
    value = match.group(1)
    counts = Counter(value)
    entropy = -sum(n / len(value) * math.log2(n / len(value)) for n in counts.values())
    return entropy >= 3.0 and any(map(str.isdigit, value)) and any(map(str.isalpha, value))


def _not_example(match: Match[str]) -> bool:
    """RFC 2606 reserves names for examples; a tag of ours has none."""
    domain = match.group().rsplit("@", 1)[1].lower()
    return not re.search(r"(?:^|\.)(?:example(?:\.(?:com|net|org))?|test|invalid|localhost)$", domain)


_WORD, _NO_WORD = r"(?<![\w.@/-])", r"(?![\w@/-])"
_DIGITS, _NO_DIGITS = r"(?<![\w.,+-])", r"(?![\w-]|[.,]\d)"

KINDS: Dict[str, Kind] = {  # the first that matches has it
    "private_key": Kind(
        "<PRIVATE_KEY>",
        re.compile(
            r"-----BEGIN [A-Z0-9 ]{0,30}PRIVATE KEY-----[\s\S]{20,20000}?-----END [A-Z0-9 ]{0,30}PRIVATE KEY-----"
        ),
        where=near("PRIVATE KEY-----", before=60, after=20_100),
    ),
    "token": Kind(
        "<TOKEN>",
        re.compile(
            r"(?<![A-Za-z0-9])(?:(?:AKIA|ASIA)[A-Z0-9]{16}|gh[pousr]_[A-Za-z0-9]{36,251}|github_pat_\w{60,90}"
            r"|glpat-[\w-]{20,}|xox[abprs]-[A-Za-z0-9-]{10,200}|sk-(?:proj-|ant-)?[A-Za-z0-9_-]{20,200}|sk_live_\w{20,100}"
            r"|AIza[\w-]{35}|hf_[A-Za-z]{34}|npm_[A-Za-z0-9]{36}|ya29\.[\w-]{20,}"
            r"|eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{10,})(?![A-Za-z0-9])"
        ),
        where=near("AKIA", "ASIA", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "xox", "sk-",
                   "sk_live_", "AIza", "hf_", "npm_", "ya29.", "eyJ", before=1, after=2000),
    ),
    "secret": Kind(
        "<SECRET>",
        re.compile(
            r"(?i)\b(?:api[_-]?key|secret[_-]?key|access[_-]?token|auth[_-]?token|client[_-]?secret|passw(?:or)?d|pwd)"
            r"[\"']?\s{0,3}[:=]{1,2}\s{0,3}[\"']?([A-Za-z0-9+/_!@#$%^&*.-]{8,200})(?=[\"'\s,;)]|$)"
        ),
        _random,
        where=near("key", "token", "secret", "passw", "pwd", before=20, after=220, any_case=True),
    ),
    "credentials": Kind(
        "<CREDENTIALS>",
        re.compile(r"(?<=://)([^\s/:@<>\"']{1,64}:[^\s/@<>\"']{1,128})(?=@)"),
        where=near("://", after=200),
    ),
    "email": Kind(
        "<EMAIL>",
        re.compile(r"(?<![\w.+%-])[\w.+%-]{1,64}@(?:[\w-]{1,63}\.){1,8}[A-Za-z]{2,24}(?![\w-])"),
        _not_example,
        where=near("@", before=70, after=600),
    ),
    "iban": Kind(
        "<IBAN>", re.compile(r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?\b"), _stdnum("iban")
    ),
    "card": Kind("<CARD>", re.compile(_DIGITS + r"\d(?:[ -]?\d){12,18}" + _NO_DIGITS), _card),
    "chinese_id": Kind("<CHINESE_ID>", re.compile(r"(?<!\d)[1-9]\d{16}[\dXx](?!\d)"), _stdnum("cn.ric")),
    "italian_id": Kind(
        "<ITALIAN_ID>", re.compile(r"\b[A-Z]{6}\d{2}[A-EHLMPRST]\d{2}[A-Z]\d{3}[A-Z]\b"), _stdnum("it.codicefiscale")
    ),
    "french_id": Kind(
        "<FRENCH_ID>",
        re.compile(_DIGITS + r"[12] ?\d{2} ?(?:0[1-9]|1[0-2]) ?\d[\dAB] ?\d{3} ?\d{3} ?\d{2}" + _NO_DIGITS),
        _stdnum("fr.nir"),
    ),
    "spanish_id": Kind("<SPANISH_ID>", re.compile(r"\b(?:\d{8}|[XYZ]-?\d{7})-?[A-HJ-NP-TV-Z]\b"),
                       lambda match: _stdnum("es.dni")(match) or _stdnum("es.nie")(match)),
    "brazilian_id": Kind(
        "<BRAZILIAN_ID>", re.compile(_DIGITS + r"\d{3}\.\d{3}\.\d{3}-\d{2}" + _NO_DIGITS), _stdnum("br.cpf")
    ),
    "indian_id": Kind(
        "<INDIAN_ID>", re.compile(_DIGITS + r"[2-9]\d{3} \d{4} \d{4}" + _NO_DIGITS), _stdnum("in_.aadhaar")
    ),
    "american_id": Kind("<AMERICAN_ID>", re.compile(_DIGITS + r"\d{3}-\d{2}-\d{4}" + _NO_DIGITS), _stdnum("us.ssn")),
    "chinese_mobile": Kind(
        "<PHONE>", re.compile(r"(?<![\d.])(?:(?:\+|00)86[ -]?)?1[3-9]\d(?:[ -]?\d{4}){2}(?![\d.])"), _phone("CN")
    ),
    "international_phone": Kind(
        "<PHONE>", re.compile(r"(?<![\w+])(?:\+|00)[1-9](?:[ ().\u00a0/-]{0,2}\d){7,14}(?!\w)"), _phone("DE")
    ),
    "american_phone": Kind(
        "<PHONE>",
        re.compile(_DIGITS + r"(?:1[-. ])?(?:\(\d{3}\) ?|\d{3}[-. ])\d{3}[-.]\d{4}" + _NO_DIGITS),
        _phone("US"),
    ),
    "named_phone": Kind(
        "<PHONE>",
        re.compile(
            r"(?i)(?:\b(?:tel|phone|mobile|mob|fax|call|t[eé]l[eé]phone|telefon|handy|tel[eé]fono|cellulare|тел)\b\.?|电话|電話|手机)"
            r"\s?[:.：]?\s?(\(?0?\d(?:[ ()./-]{0,2}\d){6,12})(?!\w)"
        ),
    ),
    "ipv4": Kind(
        "<IP_ADDRESS>",
        re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w]|\.\d)"),
        _public_address,
        Places.dotted,
    ),
    "ipv6": Kind(
        "<IP_ADDRESS>",
        re.compile(
            r"(?<![\w:.])(?:[0-9A-Fa-f]{1,4}:){2,7}(?::?[0-9A-Fa-f]{1,4}|:)(?:(?::[0-9A-Fa-f]{1,4}){1,6})?(?![\w:])"
        ),
        _public_address,
        Places.colons,
    ),
}  # fmt: skip

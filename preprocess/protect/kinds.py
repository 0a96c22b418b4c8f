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
    where: Finder = Places.nine_digits


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


_VERSION = re.compile(
    r"(?:versions?|ver\.?|\bv|releases?|sections?|chapter|§|builds?|kernel|firmware|driver|\boid)[\s.:]*$",
    re.IGNORECASE,
)


def _public_ipv4(match: Match[str]) -> bool:
    """Private and documentation addresses mean no one. A version or section has the same form: it stands after such a
    word, or is of numbers below 20 that differ (2.6.18.3), as one address in 25,000 is; 8.8.8.8 and 8.8.4.4 are not.
    """
    numbers = [int(number) for number in match.group().split(".")]
    if max(numbers) < 20 and (numbers[0] != numbers[1] or len(set(numbers)) > 2):
        return False
    before = match.string[max(0, match.start() - 12) : match.start()]
    return _is_global(match.group()) and not _VERSION.search(before)


def _public_ipv6(match: Match[str]) -> bool:
    """Of 2000::/3, all that is given out (IANA): 8:16:: is a device, and 1:2:3:4:5:6:7:8 an example."""
    return _is_global(match.group())


def _is_global(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_global
    except ValueError:
        return False


_WORDS = re.compile(r"[/~.$]*[a-z_]+\d{0,2}(?:[._/-]+[a-z_]+\d{0,2})*", re.IGNORECASE)


def _random(match: Match[str]) -> bool:
    """At least 3 bits a character (Shannon), letters and digits, and no path or name: a password somebody uses, not
    `password=changeme` or `password=user.password1`.
    """
    value = match.group(1)
    counts = Counter(value)
    entropy = -sum(n / len(value) * math.log2(n / len(value)) for n in counts.values())
    mixed = any(map(str.isdigit, value)) and any(map(str.isalpha, value))
    return entropy >= 3.0 and mixed and not _WORDS.fullmatch(value)


def _key(match: Match[str]) -> bool:
    """sk- also begins names of style sheets; a key has digits and capitals."""
    value = match.group()
    return not value.startswith("sk-") or (any(map(str.isdigit, value)) and value.lower() != value)


_NOBODY = re.compile(
    r"^git@|@(?:.*\.)?(?:example(?:\.(?:com|net|org))?|test|invalid|local|localhost|internal|lan"
    r"|png|jpe?g|gif|svg|webp|pdf|html?|css|json|setter|getter|deleter|got|plt)$",
    re.IGNORECASE,
)


def _person(match: Match[str]) -> bool:
    """Not of the domains that RFC 2606 keeps for examples, no login of git, and no file or symbol (image@2x.png)."""
    return not _NOBODY.search(match.group())


def _named_phone(match: Match[str]) -> bool:
    """A date is none, nor a row of small numbers."""
    number = match.group(1)
    return bool(re.match(r"[0(]|.*\d{3}", number)) and not re.match(r"(?:19|20)\d\d[-./ ]\d\d?\b", number)


_CHINESE_PHONE = re.compile(r"[\u4e00-\u9fff]|\b(?:tel|phone|mobile|mob|wechat|whatsapp)\b", re.IGNORECASE)


def _chinese_mobile(match: Match[str]) -> bool:
    """Eleven digits may count bytes or nanoseconds; a phone has 86, groups, Chinese or a word beside it."""
    begin, end = match.span()
    beside = match.string[max(0, begin - 24) : begin] + match.string[end : end + 12]
    return (len(match.group()) > 11 or bool(_CHINESE_PHONE.search(beside))) and _phone("CN")(match)


_LETTERS = "A-Za-z\u00c0-\u024f\u0370-\u04ff"  # of scripts with spaces: in others no space parts an address from words
_DIGITS, _NO_DIGITS = r"(?<![\w.,+-])", r"(?![\w-]|[.,]\d)"
_ALONE, _NOT_IN_ROW = _DIGITS + r"(?<!\d )", _NO_DIGITS + r"(?! \d)"  # rows of a table have any number in them

KINDS: Dict[str, Kind] = {  # the first that matches has it
    "private_key": Kind(
        "<PRIVATE_KEY>",
        re.compile(
            r"-----BEGIN [A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)?-----(?:"
            r"(?:[^-]|-(?!----)){20,20000}-----END [A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)?-----"
            r"|(?:\s{0,8}[A-Za-z0-9+/=]{16,76}(?![^\s])){1,400})"  # cut short
        ),
        where=near("PRIVATE KEY", before=60, after=20_100),
    ),
    "token": Kind(
        "<TOKEN>",
        re.compile(
            r"(?<![A-Za-z0-9])(?:(?:AKIA|ASIA)[A-Z0-9]{16}|gh[pousr]_[A-Za-z0-9]{36,251}|github_pat_\w{60,90}"
            r"|glpat-[\w-]{20,}|xox[abprs]-[A-Za-z0-9-]{10,200}|sk-(?:proj-|ant-)?[A-Za-z0-9_-]{20,200}|sk_live_\w{20,100}"
            r"|AIza[\w-]{35}|hf_[A-Za-z]{34}|npm_[A-Za-z0-9]{36}|ya29\.[\w-]{20,}"
            r"|eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{10,})(?![A-Za-z0-9])"
        ),
        _key,
        where=Places.long_words,
    ),
    "secret": Kind(
        "<SECRET>",
        re.compile(
            r"(?i)(?:(?<![A-Za-z0-9])(?:api[_-]?key|secret[_-]?(?:access[_-]?)?key|access[_-]?key|(?:access|auth|api)[_-]?token"
            r"|client[_-]?secret|passw(?:or)?d|pwd)[\"']?\s{0,3}[:=]{1,2}\s{0,3}[\"']?|\bbearer )"
            r"([A-Za-z0-9+/_!@#$%^&*.=~-]{8,200})(?=[\"'\s,;)]|$)"
        ),
        _random,
        where=near("key", "token", "secret", "passw", "pwd", "bearer", before=20, after=220, any_case=True),
    ),
    "credentials": Kind(
        "<CREDENTIALS>",
        re.compile(r"(?<=://)([^\s/:@<>\"']{0,64}:[^\s/@<>\"']{1,128})(?=@)"),
        where=near("://", after=200),
    ),
    "email": Kind(
        "<EMAIL>",
        re.compile(
            rf"(?<![{_LETTERS}0-9_.+%-])[{_LETTERS}0-9_.+%-]{{1,64}}@(?:[{_LETTERS}0-9-]{{1,63}}\.){{1,8}}"
            rf"[{_LETTERS}]{{2,24}}(?![{_LETTERS}0-9_-])"
        ),
        _person,
        where=near("@", before=70, after=600),
    ),
    "iban": Kind(
        "<IBAN>",
        re.compile(r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?\b", re.ASCII),
        _stdnum("iban"),
    ),
    "card": Kind(
        "<CARD>",
        re.compile(
            _DIGITS
            + r"(?:\d{13,19}|\d{4}(?: \d{4}){3}(?: \d{3})?|\d{4}(?:-\d{4}){3}|\d{4}[ -]\d{6}[ -]\d{4,5})"
            + _NO_DIGITS
        ),
        _card,
    ),
    "chinese_id": Kind("<CHINESE_ID>", re.compile(r"(?<!\d)[1-9]\d{16}[\dXx](?!\d)"), _stdnum("cn.ric")),
    "italian_id": Kind(
        "<ITALIAN_ID>",
        re.compile(r"\b[A-Z]{6}\d{2}[A-EHLMPRST]\d{2}[A-Z]\d{3}[A-Z]\b", re.ASCII),
        _stdnum("it.codicefiscale"),
        Places.seven_digits,
    ),
    "french_id": Kind(
        "<FRENCH_ID>",
        re.compile(_ALONE + r"[12] ?\d{2} ?(?:0[1-9]|1[0-2]) ?\d[\dAB] ?\d{3} ?\d{3} ?\d{2}" + _NOT_IN_ROW),
        _stdnum("fr.nir"),
    ),
    "spanish_id": Kind(
        "<SPANISH_ID>",
        re.compile(r"\b(?:\d{8}|[XYZ]-?\d{7})-?[A-HJ-NP-TV-Z]\b", re.ASCII),
        lambda match: _stdnum("es.dni")(match) or _stdnum("es.nie")(match),
        Places.seven_digits,
    ),
    "brazilian_id": Kind(
        "<BRAZILIAN_ID>",
        re.compile(_DIGITS + r"(?:\d{3}\.\d{3}\.\d{3}-\d{2}|(?:(?<=CPF )|(?<=CPF: ))\d{11})" + _NO_DIGITS),
        _stdnum("br.cpf"),
    ),
    "indian_id": Kind(
        "<INDIAN_ID>",
        re.compile(
            _ALONE + r"[2-9]\d{3}(?: \d{4} \d{4}|(?:(?<=Aadhaar \d{4})|(?<=Aadhaar: \d{4}))\d{8})" + _NOT_IN_ROW
        ),
        _stdnum("in_.aadhaar"),
    ),
    "british_id": Kind(
        "<BRITISH_ID>",
        re.compile(
            r"(?:NINO|[Nn]ational [Ii]nsurance(?: [Nn]umber| [Nn]o\.?)?)(?: is|:)? ?"
            r"([A-CEGHJ-PR-TW-Z][A-CEGHJ-NPR-TW-Z] ?\d{2} ?\d{2} ?\d{2} ?[A-D])\b"
        ),
        where=near("NINO", "nsurance", before=12, after=40),
    ),
    "american_id": Kind("<AMERICAN_ID>", re.compile(_DIGITS + r"\d{3}-\d{2}-\d{4}" + _NO_DIGITS), _stdnum("us.ssn")),
    "chinese_mobile": Kind(
        "<PHONE>", re.compile(r"(?<![\d.])(?:(?:\+|00)86[ -]?)?1[3-9]\d(?:[ -]?\d{4}){2}(?!\d|\.\d)"), _chinese_mobile
    ),
    "international_phone": Kind(
        "<PHONE>",
        re.compile(r"(?<![\w+])(?:\+|00)[1-9](?:[ ().\u00a0/-]{0,2}\d){7,14}(?![A-Za-z0-9_])"),
        _phone("DE"),
        Places.seven_digits,
    ),
    "american_phone": Kind(
        "<PHONE>",
        re.compile(_DIGITS + r"(?:1[-. ])?(?:\(\d{3}\) ?|\d{3}[-. ])\d{3}[-.]\d{4}" + _NO_DIGITS),
        _phone("US"),
    ),
    "named_phone": Kind(
        "<PHONE>",
        re.compile(
            r"(?i)(?:\b(?:t[eé]l|t[eé]l[eé](?:ph|f)one?|tel[eé]fono|phone|mobile|mob|fax|handy|cellulare|тел|телефон)\b\.?|电话|電話|手机)"
            r"[^\S\n]?[:.：]?[^\S\n]?(\(?\d(?:[ ()./\u00a0-]{0,2}\d){6,12})(?![A-Za-z0-9])"
        ),
        _named_phone,
        Places.seven_digits,
    ),
    "ipv4": Kind(
        "<IP_ADDRESS>",
        re.compile(r"(?<![A-Za-z0-9_.])(?<![A-Za-z]-)(?<!==)\d{1,3}(?:\.\d{1,3}){3}(?![A-Za-z0-9_]|\.\d|-[A-Za-z])"),
        _public_ipv4,
        Places.dotted,
    ),
    "ipv6": Kind(
        "<IP_ADDRESS>",
        re.compile(
            r"[23](?<![\w:.].)[0-9A-Fa-f]{3}:(?:[0-9A-Fa-f]{1,4}:){0,6}(?::?[0-9A-Fa-f]{1,4}|:)(?:(?::[0-9A-Fa-f]{1,4}){1,6})?(?![\w:])"
        ),
        _public_ipv6,
        Places.colons,
    ),
}  # fmt: skip

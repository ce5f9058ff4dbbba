"""A feature extractor as FORMATS reads: one line after the other, no cleverness. Only for tests."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

GROUPS = ("user", "ad", "user_ad")
SECTIONS = [f"{kind}_features_{group}" for kind in ("dense", "sparse") for group in GROUPS]


@dataclass
class Reference:
    """Extracts with an ini given as {section: {key: value}}.

    After `run`: intermediate and final lines of both files, dictionary and counts.
    """

    ini: dict[str, dict[str, str]]
    min_freq: int = 1
    compat: bool = False
    list_delimiter: str = ","
    clip_min: float | None = None
    intermediate: dict[str, list[str]] = field(default_factory=dict)
    final: dict[str, list[str]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    dictionary: dict[str, int] = field(default_factory=dict)

    def run(self, train: list[list[str]], test: list[list[str]]) -> Reference:
        for name, rows in (("train", train), ("test", test)):
            self.intermediate[name] = [self.intermediate_line(row) for row in rows]
        for line in self.intermediate["train"]:
            for value in self.values_of(line):
                self.counts[value] = self.counts.get(value, 0) + 1
        ranked = sorted(self.counts.items(), key=lambda pair: (pair[1], pair[0]), reverse=True)
        kept = [value for value, count in ranked if count > self.min_freq]
        self.dictionary = {value: index for index, value in enumerate(kept, start=1)}
        for name, lines in self.intermediate.items():
            self.final[name] = [self.final_line(line) for line in lines]
        return self

    def values_of(self, line: str) -> list[str]:
        values = []
        for section, text in zip(SECTIONS[3:], line.split("\t")[5:], strict=True):
            if self.ini.get(section) or self.compat:
                for feature in text.split(","):
                    values += feature.split("|")
        return values

    def final_line(self, line: str) -> str:
        identity, label, *groups = line.split("\t")
        out = [identity, label.split("#", 1)[1]]
        for group in groups[:3]:
            values = [value.split("#", 1)[1] for value in group.split(",") if group]
            out += [",".join(values)]
        for group in groups[3:]:
            features = []
            for feature in group.split(",") if group else []:
                known = [
                    str(self.dictionary[v]) for v in feature.split("|") if v in self.dictionary
                ]
                features.append("|".join(known) or "0")
            out.append(",".join(features))
        return "\t".join(out)

    def intermediate_line(self, row: list[str]) -> str:
        names = self.ini["raw_sample_schema"]["fields"].split(",")
        sample = dict(zip(names, row, strict=True))
        out = [self.feature("id", self.ini["id"]["id"], sample)]
        out.append(self.feature("label", self.ini["label"]["label"], sample))
        for section in SECTIONS:
            features = sorted(self.ini.get(section, {}).items())
            out.append(",".join(self.feature(key, text, sample) for key, text in features))
        return "\t".join(out)

    def feature(self, key: str, text: str, sample: dict[str, str]) -> str:
        names, operator, *arguments = text.split(",")
        fields = [sample[name] for name in names.split("|")]
        prefix, values = key, [""]
        if operator == "direct":
            prefix, values = names, [self.clean(fields[0])]
        elif operator in ("log", "sqrt"):
            values = [self.curve(operator, fields[0])]
        elif operator == "bucket":
            values = [self.bucket(fields[0], arguments[0])]
        elif operator == "combine":
            parts = zip(fields, arguments[0].split("|"), arguments[1].split("#"), strict=True)
            values = ["#".join(self.part(*part) for part in parts)]
        elif operator == "group":
            prefix = arguments[0] if arguments else key
            values = [self.clean(item) for item in fields[0].split(self.list_delimiter)]
        elif operator == "hit":
            values = ["1" if self.hit(*fields) else "0"]
        return "|".join(f"{prefix}#{value}" for value in values)

    def part(self, text: str, operator: str, argument: str) -> str:
        return self.bucket(text, argument) if operator == "bucket" else self.clean(text)

    def hit(self, text: str, listed: str) -> bool:
        return listed != "" and text in listed.split(self.list_delimiter)

    def bucket(self, text: str, breaks: str) -> str:
        if self.is_absent(text):
            return "-1"
        limits = breaks.split("|")
        for index, limit in enumerate(limits):
            if np.float32(text) <= np.float32(limit):
                return str(index)
        return str(len(limits))

    def curve(self, operator: str, text: str) -> str:
        if self.is_absent(text):
            return "0.000000"
        x = float(np.float32(text))
        if self.clip_min is not None:
            x = max(x, self.clip_min)
        result = math.log(x + 1.0) if operator == "log" else math.sqrt(x + 1.0)
        return f"{np.float32(result):.6f}"

    def is_absent(self, text: str) -> bool:
        return text == "" or (text == "NULL" and not self.compat)

    def clean(self, text: str) -> str:
        if self.ini["id"].get("escape") == "true":
            for sign in ",|#\t":
                text = text.replace(sign, "_")
        assert not set(text) & set(",|#\t")
        return text


def ini_text(ini: dict[str, dict[str, str]]) -> str:
    lines = []
    for section, entries in ini.items():
        lines += [f"[{section}]", *(f"{key}={value}" for key, value in entries.items())]
    return "\n".join(lines) + "\n"


def tsv(rows: list[list[str]]) -> str:
    return "".join("\t".join(row) + "\n" for row in rows)

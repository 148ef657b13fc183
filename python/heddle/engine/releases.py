# SPDX-License-Identifier: Apache-2.0
"""Which releases of the servers are known, and what each of them serves as PEFT means it.

A server reads over a field of adapter_config.json that it does not know: it loads the adapter, and answers
with other weights, without a word. So a version is compared with every server before one of them gets it.

vLLM    vllm/lora/peft_helper.py. Since 0.32 it applies rank_pattern and alpha_pattern, and refuses what it
        does not implement. 0.26 to 0.31 refuse DoRA, bias and modules_to_save alone, and read over the rest.
SGLang  srt/lora/lora_config.py, the same file in 0.5.12 and 0.5.23, reads r, lora_alpha, target_modules and
        use_dora, and nothing else. srt/lora/lora.py (_process_weight) skips the tensors of embed_tokens and
        lm_head where target_modules does not name these modules.

Plain values, for any thread."""
from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from heddle import _native
from heddle.errors import HeddleError

Number = tuple[int, ...]


@dataclass(frozen=True)
class Product:
    """A server program, and the releases of it that are known: `first` to all that begin with `last`."""

    name: str
    path: str                            # where a server tells its release
    first: Number
    last: Number
    since: Mapping[str, Number]          # feature -> the first release that applies it

    def is_known(self, number: Number) -> bool:
        return self.first <= number and number[:len(self.last)] <= self.last


PRODUCTS = {
    "vllm": Product("vLLM", "/version", (0, 26), (0, 33),
                    {"embeddings": (0, 26), "rank_pattern": (0, 32), "rslora": (0, 26)}),
    "sglang": Product("SGLang", "/server_info", (0, 5, 12), (0, 5, 23), {}),
}
# "0.32.0", "0.32.0+cpu", "0.5.10.post1". One that is still being made ("0.33.0rc1") is not in the list.
_FINAL = re.compile(r"([0-9]{1,4})\.([0-9]{1,4})\.([0-9]{1,4})(?:\.post[0-9]+)?(?:\+[A-Za-z0-9.]+)?")
# how a target module may be called for SGLang to take the tensors of the module (srt/lora/utils.py)
_CALLED = {"embed_tokens": {"embed_tokens", "vocab_emb", "embeddings", "word_embeddings"},
           "lm_head": {"lm_head", "output", "unembed_tokens"}}
_INSTEAD = {"init_base": "save with path_initial_model_for_weight_conversion"}
_WORDS = {"rank_pattern": "rank_pattern or alpha_pattern"}


@dataclass(frozen=True)
class Content:
    """What a version has beyond a plain LoRA."""

    features: frozenset[str]
    unnamed: tuple[str, ...]             # modules outside the layers with LoRA tensors, not in target_modules


def content_of(features: Iterable[str], config: bytes, tensors: Iterable[str]) -> Content:
    """`config`: adapter_config.json. What it says may be anything; a server refuses nonsense itself."""
    try:
        read = json.loads(config)
    except (ValueError, RecursionError):
        read = None
    targets = read.get("target_modules") if isinstance(read, dict) else None
    if isinstance(targets, str):         # "all-linear" takes every module; SGLang refuses another text itself
        return Content(frozenset(features), ())
    named = {str(target).rpartition(".")[2] for target in (targets if isinstance(targets, list) else ())}
    found = {module for module in map(_outer_module, tensors) if module and not named & _CALLED[module]}
    return Content(frozenset(features), tuple(sorted(found)))


def _outer_module(tensor: str) -> str | None:
    """Which module outside the layers a LoRA tensor belongs to, by SGLang's own rule."""
    name = tensor.replace("unembed_tokens", "lm_head")
    if "lora_" not in name or re.search(r"layers\.[0-9]+\.", name):
        return None
    return next((module for module in _CALLED if module in name), None)


@dataclass(frozen=True)
class Release:
    """Of one server; `text` as the server tells it, None where it does not."""

    kind: str
    text: str | None

    def __str__(self) -> str:
        return f"{self._product.name} {self.text or 'of an unknown release'}"

    @property
    def _product(self) -> Product:
        return PRODUCTS[self.kind]

    @property
    def _number(self) -> Number | None:
        """None: no release of the list."""
        found = _FINAL.fullmatch(self.text or "")
        number = tuple(map(int, found.groups())) if found else None
        return number if number and self._product.is_known(number) else None

    def applies(self) -> frozenset[str]:
        """Features that it serves rightly. One that is not in the list gets what every one of the list
        applies."""
        product, number = self._product, self._number
        return frozenset(f for f, since in product.since.items() if since <= (number or product.first))

    def doubt(self) -> str | None:
        """What to tell of a release that is not in the list."""
        if self._number:
            return None
        product = self._product
        told = f"runs {self}" if self.text else f"does not tell its release at {product.path}"
        return (f"{told}; known are {product.name} {dotted(product.first)} to {dotted(product.last)}. "
                "Adapters with rank_pattern or alpha_pattern are refused there")

    def misfit(self, url: str, content: Content, accepted: Collection[str]) -> HeddleError | None:
        """Why this server is not to get a version; None: it serves it as it was trained. A broker keeps 255
        bytes of it."""
        if missing := sorted(content.features.difference(self.applies(), accepted)):
            return self._not_applied(url, missing)
        if self.kind == "sglang" and content.unnamed:
            modules = " and ".join(content.unnamed)
            return _native.error("unsupported_feature", f"{self} at {url} skips the tensors of {modules}",
                                 phase="stage", expected=f"{modules} in target_modules",
                                 hint="name it there for training, or train without it")
        return None

    def _not_applied(self, url: str, missing: list[str]) -> HeddleError:
        product = self._product
        words = ", ".join(_WORDS.get(feature, feature) for feature in missing)
        since = [product.since.get(feature) for feature in missing]
        newer = [number for number in since if number]
        if len(newer) == len(since):
            wanted = f"{product.name} {dotted(max(newer))} to {dotted(product.last)}"
            other = "serve it with one of those"
        else:
            wanted = " ".join(["plain LoRA", *sorted(self.applies())])
            other = _INSTEAD.get(missing[0], "train without it")
        return _native.error("unsupported_feature", f"{self} at {url} does not apply {words}", phase="stage",
                             expected=wanted,
                             hint=f"{other}, or take what it answers: --accept {missing[0]}")


def dotted(number: Number) -> str:
    return ".".join(map(str, number))

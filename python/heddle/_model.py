# SPDX-License-Identifier: Apache-2.0
"""The adapter of a live PeftModel: which parameter goes where, worked out once and used for every version.

The names and types are those that PEFT's save_pretrained would write: PEFT's own get_peft_model_state_dict
says which, asked once with the parameters themselves instead of copies.  What is remembered is checked each
time against the model: its tree of modules, the place of each parameter in it and in memory, its shape and
type, and the adapter's configuration.  Whatever of that changed, the plan is made anew.  (A tensor that is
put into a module which had none of the adapter's is not looked for, nor a buffer that is not to be saved any
more, nor a module's whole __dict__ that is another.)
Nothing is ever merged, and nothing of the model is changed; it has one more attribute, for its plans.
"""
from __future__ import annotations

import array
import collections
import functools
import gc
import itertools
import json
import operator
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from heddle import _calls, _native
from heddle._native import ffi, lib
from heddle.errors import HeddleError
from heddle.tensors import _FROM_TORCH, Table, address, check_memory, torch_target

_TARGETS_MAX = 4            # regions of a publisher that are remembered; it has three


@dataclass(frozen=True)
class Use:
    """What an adapter of a model is looked at for, for errors: the phase, and what hints name."""
    phase: str | None
    verb: str
    named: str
    no_model: str


PUBLISH = Use("pack", "published", "publish(model, peft_adapter=...)",
              "wrap the model with peft.get_peft_model, or use publish_tensors")
LOAD = Use(None, "loaded", "load_into(model, a, adapter=...)", "wrap the model with peft.get_peft_model")


def unwrapped(model: Any, use: Use = PUBLISH) -> Any:
    """The PeftModel inside of what DistributedDataParallel, DeepSpeed or torch.compile made of it."""
    seen = 0
    # of the class: wrappers pass attributes on
    while not hasattr(type(model), "get_base_model") and seen < 8:
        inner = getattr(model, "_orig_mod", None) or getattr(model, "module", None)
        if inner is None:
            break
        model, seen = inner, seen + 1
    if not hasattr(type(model), "get_base_model") or not hasattr(model, "peft_config"):
        raise _native.error("usage", "that is not a PeftModel", expected="peft.PeftModel",
                            found=type(model).__name__,
                            hint=use.no_model)
    return model


def lora_config(model: Any, name: str, use: Use = PUBLISH) -> Any:
    """The LoraConfig of an adapter; clear errors for what is not there, or is not a LoRA."""
    if name not in model.peft_config:
        raise _native.error("not_found", f"the model has no adapter {name!r}",
                            expected=" ".join(sorted(model.peft_config)) or "an adapter",
                            found=name, hint=f"name it: {use.named}")
    config = model.peft_config[name]
    kind = str(getattr(config.peft_type, "value", config.peft_type))
    if kind != "LORA":
        raise _native.error("unsupported_peft_type",
                            f"the adapter {name!r} is of type {kind}, and only LoRA is {use.verb}",
                            expected="LORA",
                            found=kind)
    return config


def config_of(model: Any, name: str) -> bytes:
    """adapter_config.json as save_pretrained would write it, but for the order of sets.

    PEFT's follows the hash seed, ours is sorted.
    """
    config = model.peft_config[name]
    fields = {key: sorted(value) if isinstance(value, (set, frozenset)) else value
              for key, value in config.to_dict().items()}
    if fields.get("base_model_name_or_path") is None:
        fields["base_model_name_or_path"] = model.base_model.model.__dict__.get("name_or_path", None) or None
    fields["inference_mode"] = True
    if config.task_type is None:
        base = model._get_base_model_class(is_prompt_tuning=False)
        fields["auto_mapping"] = {"base_model_class": base.__name__, "parent_library": base.__module__}
    return json.dumps(fields, indent=2, sort_keys=True).encode()


def _config_key(model: Any, name: str) -> tuple[Any, ...]:
    """As long as this is the same, so is config_of(), which takes ten times as long.  (Not the values: 16
    equals 16.0, and is written differently.)
    """
    base = model.base_model.model
    return repr(vars(model.peft_config[name])), base.__dict__.get("name_or_path", None), type(base)


_KINDS = ("_parameters", "_buffers")


class _Dicts:
    """The dicts of one kind of some modules, and what was in them: children, parameters or buffers.

    A module's own dict is held, and asked for its dict of that kind each time, so that one that is exchanged
    for another is noticed.  (One lookup in C; a weak reference to the module would be three, and as many
    misses of the cache.)  That of the model, which holds the plan, is not; modules that torch.jit traced
    have nothing of theirs there.
    """

    def __init__(self, kind: str, modules: list[Any], model: Any) -> None:
        self._of, self._kind = operator.itemgetter(kind), kind
        self._held = [vars(module) for module in modules if module is not model and kind in vars(module)]
        self._others = [weakref.ref(module) for module in modules
                        if module is model or kind not in vars(module)]
        self._found = self._look()

    def _look(self) -> list[list[Any]]:
        """How much each holds, under which names, and what."""
        dicts = list(map(self._of, self._held))
        dicts += [getattr(ref(), self._kind) for ref in self._others]
        full = list(filter(None, dicts))        # most are empty
        names: Iterable[Any]
        values: Iterable[Any]
        if set(map(type, full)) <= {dict}:      # the collector's look at the values of all, in one call
            names, values = itertools.chain.from_iterable(full), gc.get_referents(*full)
        else:                                   # of an OrderedDict it has them in another order
            names, values = (itertools.chain.from_iterable(map(operator.methodcaller(what), full))
                             for what in ("keys", "values"))
        return [list(map(len, dicts)), list(names), list(map(id, values))]

    def are_as_found(self) -> bool:
        try:
            return self._look() == self._found
        except (AttributeError, KeyError):      # one has gone, or has no dict of that kind any more
            return False


class _Tree:
    """The modules of a model and their names in each other, and what the modules of the adapter's parameters
    hold.

    A module is known by its address, as long as none of them has gone: that address would be the next one's.
    So is a parameter, which the plan holds.  With the first that goes all dicts are let go, and nothing is
    found any more.  What was taken out of the model goes then; but one that refers to itself (by a hook of
    accelerate, by a method put into it) is kept until the plan is made anew.
    """

    def __init__(self, model: Any, parameters: list[Any]) -> None:
        wanted = {id(p) for p in parameters}
        modules = list(model.modules())
        owners = [module for module in modules if wanted.intersection(
            id(value) for kind in _KINDS for value in getattr(module, kind).values())]
        self._model = weakref.ref(model)
        self._held = {"dicts": [_Dicts("_modules", modules, model),
                                *(_Dicts(kind, owners, model) for kind in _KINDS)]}
        # in C alone: a signal's handler may raise in a function of Python's, and the exception would be lost
        let_go = functools.partial(self._held.pop, "dicts")
        self._refs = [weakref.ref(module, let_go) for module in modules]

    def is_of(self, model: Any) -> bool:
        all_dicts = self._held.get("dicts")
        return (all_dicts is not None and self._model() is model
                and all(dicts.are_as_found() for dicts in all_dicts) and "dicts" in self._held)


def shape_of(parameter: Any) -> tuple[int, ...]:
    """Its whole shape, sharded or not (ZeRO-3 leaves an empty tensor behind, and the shape beside it)."""
    return tuple(int(n) for n in getattr(parameter, "ds_shape", parameter.shape))


class Outdated(Exception):
    """A plan was that of the model, and is no longer."""


def _each(things: list[Any], *reads: Callable[[Any], Any]) -> list[list[Any]]:
    """Attribute by attribute, which takes half the time of thing by thing."""
    return [list(map(read, things)) for read in reads]


def _memory(parameters: list[Any]) -> list[list[Any]]:
    """As long as this is the same, reading where their bytes lay is reading their storages."""
    import torch
    storages = list(map(torch.Tensor.untyped_storage, parameters))
    return _each(storages, torch.UntypedStorage.data_ptr, torch.UntypedStorage.nbytes)


def _forms(parameters: list[Any]) -> list[list[Any]]:
    """As long as this is the same too, their bytes lie there as they lay."""
    import torch
    of = torch.Tensor
    return _each(parameters, of.data_ptr, of.is_contiguous, of.dtype.__get__, of.shape.__get__, of.is_neg,
                 of.is_conj)


class Plan:
    """name -> parameter -> place, of one adapter of one model."""

    def __init__(self, model: Any, name: str, config: bytes) -> None:
        self.name, self.config, self._config_key = name, config, _config_key(model, name)
        rows = _saved(model, name)
        self.parameters = [p for _, p in rows]
        _check_owned(model, self.parameters)
        self._tree = _Tree(model, self.parameters)
        # of ZeRO-3's: empty, and so they stay
        self._looks = [(p.dtype, p.shape) for p in self.parameters]
        self.is_sharded = any(map(is_sharded, self.parameters))     # of other ones there is another plan
        self.table = Table([(key, _dtype(key, p), shape_of(p)) for key, p in rows])
        self._targets: dict[tuple[int, tuple[int, ...]], list[Any]] = {}
        # where everything lies on the CPU as it will lie in a region: memory and forms; and the addresses
        self._found: tuple[list[list[Any]], list[list[Any]]] | None = None
        self._sources = array.array("Q")
        # what the ranks hold of it, and a digest of what it is (_collective)
        self.shards: Any = None
        self.outline: bytes | None = None

    def fits(self, model: Any, config: bytes) -> bool:
        """Whether the model is still the one that this was made of."""
        if config != self.config or not self.looks_alike() or not self.is_of(model):
            return False
        self._config_key = _config_key(model, self.name)        # another, of the same bytes
        return True

    def looks_alike(self) -> bool:
        """Whether the parameters are of the types and shapes that they were of."""
        return all(p.dtype is dtype and p.shape == shape
                   for p, (dtype, shape) in zip(self.parameters, self._looks, strict=True))

    @property
    def is_found(self) -> bool:
        """All its parameters were found on the CPU, as they will lie in a region."""
        return self._found is not None

    def is_there(self) -> bool:
        """Whether there is memory still where every parameter was found to have its own."""
        try:
            return self._found is not None and _memory(self.parameters) == self._found[0]
        except (NotImplementedError, RuntimeError):             # one that has none
            return False

    def lies_as_found(self) -> bool:
        """Whether every parameter, which is there, lies as it lay when that was checked."""
        return self._found is not None and _forms(self.parameters) == self._found[1]

    def _find(self) -> list[bool]:
        """Which parameters lie on the CPU as they will lie in a region; their addresses into _sources.  Their
        memory was checked.
        """
        found = [address(p) for p in self.parameters]
        plain = [at is not None for at in found]
        self._sources = array.array("Q", [at or 0 for at in found])
        self._found = (_memory(self.parameters), _forms(self.parameters)) if all(plain) else None
        return plain

    def is_of(self, model: Any) -> bool:
        """Whether the model has the modules that it had, and the parameters their places in it."""
        return self._tree.is_of(model)

    def targets(self, publication: Any, rows: Sequence[int] | None = None) -> list[Any]:
        """A torch tensor over the place in the region of each of these rows (rule: all).

        None for other rows, and where there are no bytes.

        Regions take turns, and are known again.  Each place is asked for nevertheless: the library makes no
        version with a tensor that was neither written nor asked for.
        """
        wanted = tuple(range(len(self.table)) if rows is None else rows)
        places = {i: lib.heddle_publication_tensor(publication, i) for i in wanted}
        key = (int(ffi.cast("uintptr_t", places[wanted[0]])) if wanted else 0, wanted)
        found = self._targets.get(key)
        if found is None:       # a table is laid out in one way: where one tensor is again, everything is
            found = [torch_target(places[i], size, dtype, shape) if size and i in places else None
                     for i, (size, (_, dtype, shape)) in
                     enumerate(zip(self.table.sizes, self.table.rows, strict=True))]
            if len(self._targets) >= _TARGETS_MAX:
                self._targets.clear()
            self._targets[key] = found
        return found

    def check_memory(self, phase: str | None) -> None:
        """A parameter whose storage was freed (offloading; FSDP between steps) has nothing to publish."""
        for p, (key, _, _) in zip(self.parameters, self.table.rows, strict=True):
            check_memory(key, p, phase)

    def fill(self, begin: Callable[[], Any], _table: Table, model: Any = None) -> None:
        """Copies every parameter to its place, once.

        What lies on the CPU as it will lie there in one call of the library, the rest by torch.
        begin   opens the publication and returns it, in C for most of its time
        model   whether the plan is still of this one is found out on the way, while the library lays it out
                and copies.  Outdated: it is not, and what was copied is of no use.  None: that, and the
                parameters' memory, was checked.
        """
        publication: Any = None
        plain: list[bool] = []

        def start() -> None:
            nonlocal publication
            publication = begin()
        if model is None or not self.is_found:
            start()
            plain = self._find()
        elif not _calls.beside(start, self.is_there):
            raise Outdated

        def write() -> None:
            _native.check(lib.heddle_publication_write(publication,
                                                       ffi.from_buffer("void *[]", self._sources)))
        if model is None:
            write()
        elif not _calls.beside(write, lambda: (not self.is_found or self.lies_as_found())
                               and self.is_of(model)
                               and _config_key(model, self.name) == self._config_key):
            raise Outdated
        rest = [i for i, as_it_lies in enumerate(plain) if not as_it_lies]
        if rest:
            copy(self.targets(publication, rest), self.parameters)


def copy(targets: list[Any], sources: list[Any]) -> None:
    """Each source into its target, whatever the strides, device and pending signs of either."""
    import torch
    pairs = [(t, s) for t, s in zip(targets, sources, strict=True) if t is not None]
    together: Callable[..., Any] | None = getattr(torch, "_foreach_copy_", None)
    plain: list[tuple[Any, Any]] = []
    others: list[tuple[Any, Any]] = []
    for pair in pairs:
        (others if together is None or pair[0].is_neg() or pair[0].is_conj() else plain).append(pair)
    with torch.no_grad():
        if together is not None and plain:
            together([t for t, _ in plain], [s for _, s in plain])
        for target, source in others:
            target.copy_(source)


def _saved(model: Any, name: str) -> list[tuple[str, Any]]:
    """What save_pretrained would write: PEFT's key, and the parameter or buffer itself."""
    import warnings

    from peft import get_peft_model_state_dict
    with warnings.catch_warnings():
        # "Setting `save_embedding_layers` to `True`": as when it is saved
        warnings.simplefilter("ignore")
        found = get_peft_model_state_dict(model, state_dict=model.state_dict(keep_vars=True),
                                          adapter_name=name)
    return list(found.items())


def _check_owned(model: Any, parameters: list[Any]) -> None:
    owned = {id(value) for module in model.modules() for kind in _KINDS
             for value in getattr(module, kind).values()}
    lost = sum(id(p) not in owned for p in parameters)
    if lost:
        raise _native.error("unsupported_feature",
                            f"{lost} tensors that PEFT would save are not parameters of the model",
                            hint="make them parameters of a module; to publish them as they are, save the "
                                 "adapter and use publish_dir")


def _dtype(key: str, parameter: Any) -> str:
    found = _FROM_TORCH.get(str(parameter.dtype))
    if found is None:
        raise _native.error("usage", f"tensor {key} has a type that no adapter has",
                            found=str(parameter.dtype), expected="a type of safetensors")
    return found


_PLANS = "_heddle_plans"


class _Plans(dict[str, Plan]):
    """The plans of a model's adapters, in the model itself: they go with it, whatever refers to what.  What a
    copy of it has, in memory or in a file, is not looked at.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = weakref.ref(model)

    def __reduce_ex__(self, _protocol: Any) -> Any:
        # reading it needs no Heddle; torch.load takes that type also where it takes weights only
        return collections.OrderedDict, ()


def _plans_of(model: Any) -> _Plans:
    plans = vars(model).get(_PLANS)
    if type(plans) is not _Plans or plans.model() is not model:
        vars(model)[_PLANS] = plans = _Plans(model)
    return plans


def plan_of(model: Any, name: str, use: Use = PUBLISH) -> tuple[Plan, bool]:
    """The plan of an adapter, and whether it was made just now.  `model` is unwrapped."""
    lora_config(model, name, use)
    config = config_of(model, name)
    known = _plans_of(model)
    plan = known.get(name)
    is_new = plan is None or not plan.fits(model, config)
    if plan is None or is_new:
        known[name] = plan = Plan(model, name, config)
    plan.check_memory(use.phase)
    return plan, is_new


def known_plan(model: Any, name: str) -> Plan | None:
    """The plan that was made before, where all is as it was but for what Plan.fill() finds out.  None: it is
    to be made, or all of it checked.
    """
    lora_config(model, name)
    plan = _plans_of(model).get(name)
    if plan is None or plan.is_sharded:
        return None
    if plan.is_found:               # looked at when it is copied
        return plan
    if not plan.looks_alike():
        return None
    try:
        plan.check_memory(None)
    except HeddleError:             # of what may be no parameter of the model any more
        return None
    return plan


def is_sharded(parameter: Any) -> bool:
    """A DTensor (FSDP2, tensor parallel), or a parameter that ZeRO-3 has taken apart."""
    return hasattr(parameter, "device_mesh") or hasattr(parameter, "ds_id")

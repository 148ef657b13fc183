# SPDX-License-Identifier: Apache-2.0
"""Heddle in place of TRL's weight sync.

    trainer = GRPOTrainer(model=..., peft_config=..., rollout_func=ask_the_workers, ...)
    with heddle.Publisher("tcp://broker:7700", adapter="policy") as publisher:
        heddle.trl.attach(trainer, publisher)
        trainer.train()

TRL merges the adapter into the base model and sends every weight of the result, tensor by tensor, to the one
engine that it knows.  Attached, it publishes the adapter alone, and waits until the workers have it.  What is
replaced is private to TRL: a release that was not tried is refused.
"""
from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import Any

from heddle._handle import Until
from heddle.engine import names
from heddle.errors import HeddleError, UsageError
from heddle.publisher import Publisher
from heddle.versions import Version

__all__ = ["Pushed", "Sync", "attach", "TRIED"]

TRIED = ("1.16",)       # releases of TRL whose GRPOTrainer the tests run with

_OVERTAKEN = ("superseded", "retired")


@dataclass(frozen=True)
class Pushed:
    """One sync.  `version` was published, every eligible worker is at `live` or newer; seconds that the
    training loop stood still for either."""
    step: int
    version: Version
    live: Version | None        # None: nothing was waited for (max_lag None)
    publish_s: float
    wait_s: float


class Sync:
    """What stands where TRL's weight sync was.  Made by `attach`.  Belongs to the thread that trains."""

    def __init__(self, trainer: Any, publisher: Publisher, max_lag: int | None = 0,
                 timeout: float | None = 60.0, served: names.Template | None = None,
                 allow_step_back: bool = False) -> None:
        self._trainer, self._publisher = trainer, publisher
        self._timeout, self._allow_step_back = timeout, allow_step_back
        self._served = served                   # None: no worker is asked by name
        self._recent: deque[Version] = deque(maxlen=None if max_lag is None else max_lag + 1)
        self._max_lag = max_lag
        self._is_stale = True                   # the weights have changed since they were published
        self._undo: list[Any] = []
        self.last: Pushed | None = None         # the sync that was last

    def push(self) -> Pushed:
        """Publishes the trainer's adapter as it is now, and waits until no worker is more than `max_lag`
        versions behind.

        Copies: the loop may step as soon as this returns.  With several ranks every rank calls it.  Raises
        what `Publisher.publish` and `Version.wait` raise; after that the workers serve what they served
        before, and the next push tries again.
        """
        began = time.monotonic()
        version = self._publisher.publish(self._trainer.model, step=self._trainer.state.global_step,
                                          deadline=self._timeout,
                                          allow_step_back=self._allow_step_back)
        published = time.monotonic()
        if self._max_lag is None:
            live = None
        else:
            if not self._recent or version.version != self._recent[-1].version:
                self._recent.append(version)
            live = self._wait()
        self._is_stale = False
        self.last = Pushed(self._trainer.state.global_step, version, live, published - began,
                           time.monotonic() - published)
        return self.last

    def _wait(self) -> Version:
        """Until the oldest version that may be served is active; one that was overtaken gives its place to
        the next."""
        until = Until(self._timeout)
        while True:
            oldest = self._recent[0]
            try:
                oldest.wait("active", timeout=until.left())
                return oldest
            except HeddleError as e:
                state = getattr(getattr(e, "rollout", None), "state", None)
                if state not in _OVERTAKEN or len(self._recent) == 1:
                    raise
                self._recent.popleft()

    def before_generation(self) -> None:
        """Pushes if the weights have changed since the last time."""
        if self._is_stale:
            self.push()

    def _watch(self) -> None:
        """A callback marks the weights as changed, and publishes those of the last step."""
        callback = _callback(self)
        self._trainer.add_callback(callback)
        self._undo.append(lambda: self._trainer.remove_callback(callback))

    def detach(self) -> None:
        """Gives TRL back what was replaced.  The publisher stays open."""
        while self._undo:
            self._undo.pop()()

    # -- the two ways in -------------------------------------------------------------------------------------

    def _into_rollout_func(self) -> None:
        """The next generation, of training or of an evaluation, publishes changed weights first."""
        trainer, ask = self._trainer, self._trainer.rollout_func

        def synced(prompts: Any, trainer_: Any) -> Any:
            self.before_generation()
            return ask(prompts, trainer_)

        trainer.rollout_func = synced
        self._undo.append(lambda: setattr(trainer, "rollout_func", ask))

    def _into_server_mode(self) -> None:
        """TRL calls sync_weights before each generation after a step, on every rank, and then asks its server
        by the name of the model."""
        generation = self._trainer.vllm_generation
        client = getattr(generation, "vllm_client", None)       # the main process has one
        base = client.model if client is not None else None
        served = self._served
        assert served is not None

        def sync_weights() -> None:
            self.before_generation()
            pushed = self.last
            assert pushed is not None
            if client is not None:
                version = pushed.live or pushed.version
                client.model = served.name(version.adapter, version.version, version.digest,
                                           version.step)

        generation.sync_weights = sync_weights
        self._undo.append(lambda: generation.__dict__.pop("sync_weights", None))
        if client is not None:
            self._undo.append(lambda: setattr(client, "model", base))


def attach(trainer: Any, publisher: Publisher, max_lag: int | None = 0, *, timeout: float | None = 60.0,
           served: str = names.DEFAULT,
           allow_step_back: bool = False) -> Sync:
    """Makes a TRL GRPOTrainer publish its adapter through Heddle where it would sync weights.

    trainer    a `trl.GRPOTrainer` of TRL 1.16 that trains a PEFT adapter, either with `rollout_func` and
               `use_vllm=False`, or with `use_vllm=True, vllm_mode="server"`
    publisher  an open Publisher; it stays the caller's.  With several ranks: one on every rank, with a
               process_group
    max_lag    how many versions behind the newest a worker may be when generation begins.  0: on-policy,
               every eligible worker has switched. k: the wait is for the version published k syncs ago, so
               that generation and rollout overlap.  None: no wait at all
    timeout    seconds for a rollout, and for the wait; None: no limit
    served     server mode: the name that the server knows a version by, from {adapter}, {version}, {step},
               {digest}: what `python -m heddle.engine --served-name` was given
    allow_step_back  take the adapter on from a smaller step than the newest version's: training again under
                     the same name

    With `rollout_func` each call of `rollout_func` after a step, in training and evaluation, is preceded by
    publish and wait.  In server mode `trainer.vllm_generation.sync_weights` is replaced, and requests name
    the version instead of the base model.  When training ends, the weights of its last step are published.

    A sync that fails raises out of `trainer.train()`: Deadline, RolloutFailed, Unavailable, Fenced, Conflict
    (step_back).  A worker that dies is waited for until its lease has ended, and does not count from then on.
    Raises UsageError for a trainer that has no place for it, and for an untried release.
    """
    _check_release()
    _check_lag(max_lag)
    Until(timeout)
    _check_trainer(trainer)
    template = _template(served, publisher.adapter) if trainer.use_vllm else None
    sync = Sync(trainer, publisher, max_lag, timeout, template, allow_step_back)
    if trainer.use_vllm:
        sync._into_server_mode()
    else:
        sync._into_rollout_func()
    sync._watch()
    trainer.heddle_sync = sync
    sync._undo.append(lambda: trainer.__dict__.pop("heddle_sync", None))
    return sync


def _callback(sync: Sync) -> Any:
    from transformers import TrainerCallback

    class WeightsChanged(TrainerCallback):      # type: ignore[misc]
        """Weights change before training (a checkpoint may have been loaded) and with every step.  No
        generation follows the last step of a training, so its weights are published when training ends."""

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            sync._is_stale = True

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            sync._is_stale = True

        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            sync.before_generation()

    return WeightsChanged()


# -- refusals ------------------------------------------------------------------------------------------------

def _refuse(message: str, expected: str, found: str, hint: str | None = None) -> UsageError:
    return UsageError(f"heddle.trl cannot attach: {message}", code="usage", exit=2, expected=expected,
                      found=found, hint=hint)


def _check_release() -> None:
    import trl
    if ".".join(trl.__version__.split(".")[:2]) not in TRIED:
        raise _refuse("this release of TRL was not tried, and what would be replaced in it is private: a "
                      "sync that is not where it is looked for "
                      "would leave the workers on old weights, silently", f"TRL {' or '.join(TRIED)}",
                      f"TRL {trl.__version__}",
                      "install trl==1.16.*, or call publisher.publish(model) and Version.wait() from a "
                      "callback of your own")


def _check_lag(max_lag: Any) -> None:
    if max_lag is not None and (not isinstance(max_lag, int) or isinstance(max_lag, bool) or max_lag < 0):
        raise _refuse("that is not a lag", "a count of versions, 0 or more, or None", repr(max_lag))


def _check_trainer(trainer: Any) -> None:
    from peft import PeftModel
    from trl import GRPOTrainer
    if not isinstance(trainer, GRPOTrainer):
        raise _refuse("it knows one kind of trainer", "trl.GRPOTrainer", type(trainer).__name__)
    if hasattr(trainer, "heddle_sync"):
        raise _refuse("the trainer has a sync already", "one attach for a trainer", "a second one",
                      "trainer.heddle_sync.detach() ends the first")
    if not isinstance(trainer.accelerator.unwrap_model(trainer.model), PeftModel):
        raise _refuse("the trainer's model has no adapter to publish", "a PeftModel",
                      type(trainer.model).__name__, "give GRPOTrainer a peft_config")
    if trainer.use_vllm:
        _check_server(trainer)
    elif trainer.rollout_func is None:
        raise _refuse("the trainer generates with its own model, which needs no sync",
                      "rollout_func, or use_vllm=True", "neither")


def _check_server(trainer: Any) -> None:
    if trainer.vllm_mode != "server":
        raise _refuse("an engine inside the trainer's process is not a worker: it would go on with the base "
                      "model", 'vllm_mode="server"',
                      f'vllm_mode="{trainer.vllm_mode}"',
                      "or let rollout_func ask the engines, with use_vllm=False")
    if not callable(getattr(getattr(trainer, "vllm_generation", None), "sync_weights", None)):
        raise _refuse("the sync is not where this release of TRL has it",
                      "trainer.vllm_generation.sync_weights", "nothing to call there")


def _template(served: str, adapter: str) -> names.Template:
    """The one of the plug.  What cannot be filled in is found now, and not after the first version was
    published."""
    try:
        return names.Template(served, [adapter])
    except ValueError as e:
        raise _refuse("served names no versions", "as of `python -m heddle.engine --served-name`",
                      str(e)) from e

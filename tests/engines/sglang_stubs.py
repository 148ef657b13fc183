# SPDX-License-Identifier: Apache-2.0
"""Writes import stubs for packages that SGLang's CPU path imports and does not call, into this interpreter's
site-packages.

sgl_kernel is CUDA code, torchvision and torchaudio are for pictures and sound.  Any name can be imported from
a stub; calling it raises, so that nothing is computed wrongly in silence.  Pinned memory is switched off:
there is no accelerator to pin for."""
import pathlib
import sysconfig

VERSION = "0.28.0"                       # what transformers asks torchvision for, beside torch 2.13
MODULES = ("sgl_kernel", "torchaudio", "torchaudio/functional", "torchvision", "torchvision/io",
           "torchvision/transforms",
           "torchvision/transforms/functional", "torchvision/transforms/v2",
           "torchvision/transforms/v2/functional")
STUB = '''"""Import stub: any name is there, calling it raises."""
__version__ = "%s"


class _Missing:
    def __init__(self, name):
        self._name = name

    def __call__(self, *args, **kwargs):
        raise RuntimeError(f"import stub was called: {self._name}")

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Missing(f"{self._name}.{name}")


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return _Missing(f"{__name__}.{name}")
''' % VERSION
WITHOUT_PINNING = '''

def _without_pinned_memory():
    import torch

    def unpinned(make):
        def call(*args, **kwargs):
            kwargs.pop("pin_memory", None)
            return make(*args, **kwargs)
        return call

    for name in ("tensor", "empty", "zeros", "ones", "full", "empty_like", "zeros_like", "arange",
                 "as_tensor"):
        setattr(torch, name, unpinned(getattr(torch, name)))
    torch.Tensor.pin_memory = lambda self, *args, **kwargs: self


_without_pinned_memory()
'''


def main() -> None:
    site = pathlib.Path(sysconfig.get_paths()["purelib"])
    for module in MODULES:
        folder = site / module
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "__init__.py").write_text(STUB + (WITHOUT_PINNING if module == "sgl_kernel" else ""))
    for name in ("torchvision", "torchaudio"):
        info = site / f"{name}-{VERSION}.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {VERSION}\n")


if __name__ == "__main__":
    main()

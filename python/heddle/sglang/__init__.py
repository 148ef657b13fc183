# SPDX-License-Identifier: Apache-2.0
"""Heddle inside SGLang's own server: each version goes from memory to memory into every rank, without a file.

Installed beside SGLang, the package is found by its entry point `heddle` in `sglang.srt.plugins`.
docs/sglang.md says how to turn it on.  Nothing here imports SGLang before it is on.

    plugin      the entry point: whether it is on, and what is said where it is not
    seams       the private names of SGLang that it relies on, in one list
    scale       an adapter as SGLang reads it: every scale exact, every rank the same
    loading     in a rank: versions built beside generation, and handed to SGLang's own loader
    leader      in the tokenizer manager: the one Heddle worker of the engine, and its names
"""

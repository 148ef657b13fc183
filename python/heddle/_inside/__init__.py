# SPDX-License-Identifier: Apache-2.0
"""What the plugins inside engines (heddle.vllm, heddle.sglang) have in common.

    switch      whether a plugin is on, and what is said where it is not
    seams       private names of an engine, looked for before a plugin turns on
    leader      the one Heddle worker of an engine: how a version comes, is active, and goes
    kept        versions that a request names and that are kept elsewhere
    answers     which request uses which version, and the header that says it
"""

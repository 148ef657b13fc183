# SPDX-License-Identifier: Apache-2.0
"""python -m heddle.engine: Heddle's worker beside stock vLLM and SGLang servers, which load each version
through their own HTTP interface.

docs/engines.md is its manual.  plan.py decides, without any I/O; servers.py speaks to a server; exports.py
keeps the directories; session.py is the worker; plug.py puts them together; say.py tells."""

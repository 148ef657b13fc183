# SPDX-License-Identifier: Apache-2.0
"""What torch calls the types of safetensors.  Nothing is imported for it."""
from __future__ import annotations

# safetensors' name -> torch's attribute; sub-byte types that torch cannot name are absent
TORCH = {"BOOL": "bool", "U8": "uint8", "I8": "int8", "F8_E5M2": "float8_e5m2", "F8_E4M3": "float8_e4m3fn",
         "F8_E8M0": "float8_e8m0fnu",
         "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz", "I16": "int16", "U16": "uint16",
         "F16": "float16",
         "BF16": "bfloat16", "I32": "int32", "U32": "uint32", "F32": "float32", "C64": "complex64",
         "F64": "float64", "I64": "int64",
         "U64": "uint64"}

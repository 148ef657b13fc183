/* SPDX-License-Identifier: Apache-2.0 */
/* heddle/heddle.h: everything that Heddle offers to programs. */
#ifndef HEDDLE_HEDDLE_H
#define HEDDLE_HEDDLE_H
#include <heddle/adapter.h>
#include <heddle/admin.h>
#include <heddle/error.h>
#include <heddle/keys.h>
#include <heddle/publisher.h>
#include <heddle/types.h>
#include <heddle/version.h>
#include <heddle/worker.h>
#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* heddle/version.h: the version, written here and nowhere else: CMake, pkg-config, --version and the
 * packages read it.
 *
 * A program that must know what it runs with, not what it was compiled with, asks heddle_version(). */
#ifndef HEDDLE_VERSION_H
#define HEDDLE_VERSION_H

#define HEDDLE_VERSION_MAJOR 0
#define HEDDLE_VERSION_MINOR 1
#define HEDDLE_VERSION_PATCH 0

/* "0.1.0" */
#define HEDDLE_VERSION_TEXT_(major, minor, patch) #major "." #minor "." #patch
#define HEDDLE_VERSION_TEXT(major, minor, patch) HEDDLE_VERSION_TEXT_(major, minor, patch)
#define HEDDLE_VERSION HEDDLE_VERSION_TEXT(HEDDLE_VERSION_MAJOR, HEDDLE_VERSION_MINOR, HEDDLE_VERSION_PATCH)

#endif

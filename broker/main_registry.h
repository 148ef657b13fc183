/* SPDX-License-Identifier: Apache-2.0 */
/* broker/main_registry.h: `heddle registry`: a registry as one file, from its store or into another one,
 * while no broker runs there.  One thread; everything blocks. */
#ifndef BROKER_MAIN_REGISTRY_H
#define BROKER_MAIN_REGISTRY_H

/* argv[0]: the word "registry".  The exit status of the process. */
int main_registry(int argc, char **argv);

#endif

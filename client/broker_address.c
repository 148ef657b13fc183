/* SPDX-License-Identifier: Apache-2.0 */
#include "client/broker_address.h"

#include <stdlib.h>

const char *broker_address(const char *given)
{
    const char *set = given && given[0] ? given : getenv(BROKER_ADDRESS_ENV);
    return set && set[0] ? set : BROKER_ADDRESS_DEFAULT;
}

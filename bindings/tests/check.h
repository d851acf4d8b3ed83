/* Checks of the test programs: every check is counted; a failed one is reported and the test goes on. */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>

static int checks_passed;
static int checks_failed;

#define CHECK(condition)                                                         \
    do {                                                                         \
        if (condition) {                                                         \
            checks_passed++;                                                     \
        } else {                                                                 \
            checks_failed++;                                                     \
            printf("    %s:%d: not so: %s\n", __FILE__, __LINE__, #condition);   \
        }                                                                        \
    } while (0)

/* Returns the exit status for main. */
static int checks_done(void)
{
    printf("    %d checks, %d failed\n", checks_passed + checks_failed, checks_failed);
    return checks_failed != 0 || checks_passed == 0;
}

#endif

/* Members of a communicator as threads, for tests of communicator.h. */
#ifndef MEMBERS_H
#define MEMBERS_H

#include <hotlease/communicator.h>

#include "check.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS_MAX = 5 };
static const char SECRET[] = "the secret of these tests";

static hotlease_comm_rendezvous* meeting;
static pthread_mutex_t counting = PTHREAD_MUTEX_INITIALIZER;

/* Checks of threads are counted one at a time. */
#define EXPECT(condition)                  \
    do {                                   \
        const int expected_ = (condition); \
        pthread_mutex_lock(&counting);     \
        CHECK(expected_ && #condition);    \
        pthread_mutex_unlock(&counting);   \
    } while (0)

static hotlease_comm_options options_of(const char* name, uint32_t size)
{
    return (hotlease_comm_options){.struct_size = sizeof(hotlease_comm_options),
                                   .name = name,
                                   .rendezvous = hotlease_comm_rendezvous_address(meeting),
                                   .secret = SECRET,
                                   .secret_size = sizeof SECRET - 1,
                                   .size = size};
}

struct member {
    void (*act)(hotlease_comm* comm);
    uint32_t rank, size;
};

static void* live(void* given)
{
    const struct member* self = given;
    hotlease_comm_options options = options_of("members", self->size);
    options.has_rank = 1;
    options.rank = self->rank;
    hotlease_comm* comm = NULL;
    hotlease_error* error = NULL;
    if (hotlease_comm_join(&options, &comm, &error) != HOTLEASE_OK) {
        printf("    rank %u of %u: %s\n", self->rank, self->size, hotlease_error_message(error));
        exit(1);
    }
    EXPECT(hotlease_comm_rank(comm) == self->rank && hotlease_comm_size(comm) == self->size);
    EXPECT(strcmp(hotlease_comm_name(comm), "members") == 0);
    self->act(comm);
    return NULL;
}

/* Runs `act` in each member; it frees the communicator. */
static void each(uint32_t size, void (*act)(hotlease_comm* comm))
{
    pthread_t threads[RANKS_MAX];
    struct member members[RANKS_MAX];
    for (uint32_t rank = 0; rank < size; rank++) {
        members[rank] = (struct member){act, rank, size};
        if (pthread_create(&threads[rank], NULL, live, &members[rank]) != 0)
            abort();
    }
    for (uint32_t rank = 0; rank < size; rank++)
        pthread_join(threads[rank], NULL);
}

/* Starts the rendezvous. */
static void meet(void)
{
    setvbuf(stdout, NULL, _IOLBF, 0); /* so that output before a crash is printed, too */
    hotlease_error* error = NULL;
    if (hotlease_comm_rendezvous_start("127.0.0.1:0", SECRET, sizeof SECRET - 1, &meeting, &error) !=
        HOTLEASE_OK) {
        printf("    %s\n", hotlease_error_message(error));
        exit(1);
    }
}

#endif

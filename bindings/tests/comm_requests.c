/* Operations of communicator.h that go on while the program does something else. Needs no platform. */

#include "calls.h"
#include "members.h"

static void requests(hotlease_comm* comm)
{
    enum { COUNT = 20, LARGE = 500000 };
    const uint32_t other = 1 - hotlease_comm_rank(comm);
    static uint32_t in[2][COUNT], out[2][COUNT];
    hotlease_comm_request* all[2 * COUNT + 1] = {NULL};
    hotlease_comm_message got[2 * COUNT + 1];
    uint32_t* mine = out[1 - other];
    for (uint32_t i = 0; i < COUNT; i++) {
        mine[i] = 100 * other + i;
        WORKS(hotlease_comm_irecv(comm, &in[1 - other][i], 4, other, i, &all[i], &error));
    }
    for (uint32_t i = COUNT; i-- > 0;)
        WORKS(hotlease_comm_isend(comm, &mine[i], 4, other, i, &all[COUNT + i], &error));
    /* One of them is tested until it ends, and then waited for; the last entry is NULL. */
    while (!hotlease_comm_test(all[7]))
        ;
    EXPECT(in[1 - other][7] == 100 * (1 - other) + 7 && hotlease_comm_test(all[7]) == 1);
    EXPECT(hotlease_comm_cancel(all[7]) == 0);
    WORKS(hotlease_comm_wait_all(all, 2 * COUNT + 1, got, &error));
    for (uint32_t i = 0; i < COUNT; i++)
        EXPECT(in[1 - other][i] == 100 * (1 - other) + i && got[i].tag == i && got[i].size == 4 &&
               all[i] == NULL);
    WORKS(hotlease_comm_wait_all(NULL, 0, NULL, &error));

    /* The request that ends first is reported first, wherever it is; entries that are NULL are skipped. */
    size_t first = 0;
    WORKS(hotlease_comm_irecv(comm, &in[1 - other][1], 4, other, 41, &all[1], &error));
    WORKS(hotlease_comm_irecv(comm, &in[1 - other][3], 4, other, 43, &all[3], &error));
    WORKS(hotlease_comm_send(comm, "late", 4, other, 43, &error));
    WORKS(hotlease_comm_wait_any(all, 4, &first, &error));
    EXPECT(first == 3);
    WORKS(hotlease_comm_wait(all[3], &got[3], &error));
    all[3] = NULL;
    EXPECT(memcmp(&in[1 - other][3], "late", 4) == 0 && got[3].tag == 43);
    /* Both have received theirs before either sends the next: else "then" may be here at the first check. */
    WORKS(hotlease_comm_barrier(comm, &error));
    WORKS(hotlease_comm_send(comm, "then", 4, other, 41, &error));
    WORKS(hotlease_comm_wait_any(all, 4, &first, &error));
    EXPECT(first == 1 && hotlease_comm_test(all[1]) == 1);
    WORKS(hotlease_comm_wait_any(all, 4, &first, &error));
    EXPECT(first == 1);
    WORKS(hotlease_comm_wait(all[1], NULL, &error));
    all[1] = NULL;
    WORKS(hotlease_comm_wait_any(all, 4, &first, &error));
    EXPECT(first == 4);
    WORKS(hotlease_comm_wait_any(NULL, 0, &first, &error));
    EXPECT(first == 0);

    /* Of two that have ended the first one is reported, also if the second one ended as it began. */
    WORKS(hotlease_comm_irecv(comm, &in[1 - other][0], 4, other, 51, &all[0], &error));
    WORKS(hotlease_comm_barrier(comm, &error));
    WORKS(hotlease_comm_send(comm, "one ", 4, other, 51, &error));
    WORKS(hotlease_comm_send(comm, "two ", 4, other, 52, &error));
    WORKS(hotlease_comm_barrier(comm, &error));
    WORKS(hotlease_comm_irecv(comm, &in[1 - other][2], 4, other, 52, &all[2], &error));
    WORKS(hotlease_comm_wait_any(all, 4, &first, &error));
    EXPECT(first == 0);
    WORKS(hotlease_comm_wait_all(all, 3, got, &error));
    EXPECT(memcmp(&in[1 - other][0], "one ", 4) == 0 && memcmp(&in[1 - other][2], "two ", 4) == 0);

    /* A receive without a message can be cancelled; if it is freed instead, its memory is the caller's again, too. */
    hotlease_comm_request* never = NULL;
    uint32_t memory = 5;
    WORKS(hotlease_comm_irecv(comm, &memory, 4, other, 99, &never, &error));
    EXPECT(hotlease_comm_test(never) == 0 && hotlease_comm_cancel(never) == 1);
    FAILS(hotlease_comm_wait(never, NULL, &error), HOTLEASE_CANCELLED, -1, "tag 99");
    WORKS(hotlease_comm_irecv(comm, &memory, 4, other, 99, &never, &error));
    hotlease_comm_request_free(never);
    WORKS(hotlease_comm_barrier(comm, &error));
    WORKS(hotlease_comm_send(comm, "late", 4, other, 99, &error));
    WORKS(hotlease_comm_barrier(comm, &error));
    EXPECT(memory == 5);

    /* Of several failures the first one is returned, and the results of the others are there. */
    WORKS(hotlease_comm_irecv(comm, &memory, 2, other, 99, &all[0], &error));
    WORKS(hotlease_comm_irecv(comm, &in[1 - other][3], 4, other, 100, &all[1], &error));
    WORKS(hotlease_comm_send(comm, "good", 4, other, 100, &error));
    FAILS(hotlease_comm_wait_all(all, 2, got, &error), HOTLEASE_OUTPUT_TOO_LARGE, other, "4 bytes");
    EXPECT(memcmp(&in[1 - other][3], "good", 4) == 0 && got[1].tag == 100);
    WORKS(hotlease_comm_barrier(comm, &error));
    hotlease_comm_free(comm);
}

int main(void)
{
    meet();
    each(2, requests);
    hotlease_comm_rendezvous_free(meeting);
    return checks_done();
}

/* memory.h, against a running platform. */

#include <hotlease/memory.h>

#include "check.h"

#include <stdlib.h>
#include <string.h>

enum { SIZE = 3 << 20 };

static unsigned char source[SIZE], target[SIZE];

static void refused(hotlease_status status, hotlease_error* error, const char* word)
{
    CHECK(status == HOTLEASE_INVALID_ARGUMENT);
    CHECK(strstr(hotlease_error_message(error), word) != NULL);
    hotlease_error_free(error);
}
#define REFUSED(call, word)              \
    do {                                 \
        hotlease_error* error = NULL;    \
        hotlease_status status = (call); \
        refused(status, error, word);    \
    } while (0)

static void copies(const char* transport, uint32_t nodes)
{
    const hotlease_options lease = {.struct_size = sizeof lease, .transport = transport};
    const hotlease_memory_options options = {
        .struct_size = sizeof options, .nodes = nodes, .stripe_bytes = 4096, .lease = &lease};
    hotlease_memory* memory = NULL;
    hotlease_error* error = NULL;
    if (hotlease_memory_allocate(SIZE, &options, &memory, &error) != HOTLEASE_OK) {
        printf("    no memory: %s\n", hotlease_error_message(error));
        exit(1);
    }
    CHECK(hotlease_memory_size(memory) == SIZE);
    CHECK(strcmp(hotlease_memory_transport(memory), transport) == 0);
    memset(target, 1, SIZE);
    CHECK(hotlease_memory_read(memory, 0, target, SIZE, NULL) == HOTLEASE_OK);
    for (size_t i = 0; i < SIZE; i++) {
        source[i] = (unsigned char)(i * 31 + i / 4096);
        checks_failed += target[i] != 0;
    }
    CHECK(hotlease_memory_write(memory, 0, source, SIZE, NULL) == HOTLEASE_OK);
    CHECK(hotlease_memory_read(memory, 0, target, SIZE, NULL) == HOTLEASE_OK);
    CHECK(memcmp(source, target, SIZE) == 0);

    const hotlease_memory_piece pieces[] = {{10, target, 5}, {1 << 20, target + 5, 6}};
    CHECK(hotlease_memory_read_pieces(memory, pieces, 2, NULL) == HOTLEASE_OK);
    CHECK(memcmp(target, source + 10, 5) == 0 && memcmp(target + 5, source + (1 << 20), 6) == 0);
    memset(target, 9, 11);
    CHECK(hotlease_memory_write_pieces(memory, pieces, 2, NULL) == HOTLEASE_OK);
    CHECK(hotlease_memory_read(memory, 9, target, 7, NULL) == HOTLEASE_OK);
    CHECK(target[0] == source[9] && target[1] == 9 && target[5] == 9 && target[6] == source[15]);

    hotlease_memory_transfer *first = NULL, *second = NULL;
    memset(source, 3, SIZE);
    CHECK(hotlease_memory_begin_write(memory, 0, source, SIZE / 2, &first, NULL) == HOTLEASE_OK);
    CHECK(hotlease_memory_begin_write(memory, SIZE / 2, source, SIZE / 2, &second, NULL) == HOTLEASE_OK);
    hotlease_memory_transfer_free(second);
    CHECK(hotlease_memory_wait(first, NULL) == HOTLEASE_OK);
    CHECK(hotlease_memory_flush(memory, NULL) == HOTLEASE_OK);
    CHECK(hotlease_memory_begin_read(memory, 0, target, SIZE, &first, NULL) == HOTLEASE_OK);
    CHECK(hotlease_memory_wait(first, NULL) == HOTLEASE_OK);
    CHECK(memcmp(source, target, SIZE) == 0);

    REFUSED(hotlease_memory_read(memory, SIZE, target, 1, &error), "past the end");
    REFUSED(hotlease_memory_write(memory, UINT64_MAX, source, 1, &error), "past the end");
    REFUSED(hotlease_memory_write(memory, 0, NULL, 1, &error), "bytes is NULL");
    REFUSED(hotlease_memory_begin_read(memory, 1, target, SIZE, &first, &error), "past the end");
    REFUSED(hotlease_memory_read_pieces(memory, NULL, 1, &error), "pieces is NULL");

    hotlease_usage used = {.struct_size = sizeof used};
    CHECK(hotlease_memory_deallocate(memory, &used, NULL) == HOTLEASE_OK);
    CHECK(used.allocated_ns > 0 && used.compute_ns == 0);
}

int main(void)
{
    hotlease_memory* none = NULL;
    hotlease_memory_options options = {.struct_size = sizeof options, .nodes = 9};
    REFUSED(hotlease_memory_allocate(1, NULL, NULL, &error), "memory is NULL");
    REFUSED(hotlease_memory_allocate(0, NULL, &none, &error), "size");
    REFUSED(hotlease_memory_allocate(1, &options, &none, &error), "nodes must be 1 to 8");
    options.nodes = 65537;
    REFUSED(hotlease_memory_allocate(1, &options, &none, &error), "too many");
    options.nodes = 1;
    options.stripe_bytes = 5000;
    REFUSED(hotlease_memory_allocate(1, &options, &none, &error), "power of two");
    REFUSED(hotlease_memory_read(NULL, 0, target, 1, &error), "memory is NULL");
    REFUSED(hotlease_memory_flush(NULL, &error), "memory is NULL");
    REFUSED(hotlease_memory_wait(NULL, &error), "transfer is NULL");
    REFUSED(hotlease_memory_deallocate(NULL, NULL, &error), "memory is NULL");
    CHECK(none == NULL && hotlease_memory_size(NULL) == 0 && strcmp(hotlease_memory_transport(NULL), "") == 0);
    hotlease_memory_free(NULL);
    hotlease_memory_transfer_free(NULL);
    CHECK(strcmp(hotlease_status_name(HOTLEASE_MEMORY_LOST), "memory lost") == 0);
    copies("shm", 1);
    copies("shm", 3);
    copies("tcp;ofi_rxm", 1);

    /* Without deallocate. */
    CHECK(hotlease_memory_allocate(4096, NULL, &none, NULL) == HOTLEASE_OK);
    hotlease_memory_free(none);
    return checks_done();
}

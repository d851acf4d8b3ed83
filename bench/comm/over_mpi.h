/* measure.h over MPI. */
#include <mpi.h>

/* MPI ends the program at an error unless an error handler is set. */
#define ALL MPI_COMM_WORLD
#define INTS MPI_INT32_T

struct passing {
    MPI_Request request;
};

static void begin(int* argc, char*** argv) {
    MPI_Init(argc, argv);
    MPI_Comm_rank(ALL, &rank);
    MPI_Comm_size(ALL, &ranks);
}
static void end(void) { MPI_Finalize(); }

static void send_to(int to, const void* bytes, size_t size) { MPI_Send(bytes, (int)size, MPI_BYTE, to, 1, ALL); }
static void receive_from(int from, void* bytes, size_t size) {
    MPI_Recv(bytes, (int)size, MPI_BYTE, from, 1, ALL, MPI_STATUS_IGNORE);
}
static void start_send(passing* one, int to, const void* bytes, size_t size) {
    MPI_Isend(bytes, (int)size, MPI_BYTE, to, 1, ALL, &one->request);
}
static void start_receive(passing* one, int from, void* bytes, size_t size) {
    MPI_Irecv(bytes, (int)size, MPI_BYTE, from, 1, ALL, &one->request);
}
static void wait_for(passing* all, int count) {
    for (int i = 0; i < count; i++) MPI_Wait(&all[i].request, MPI_STATUS_IGNORE);
}

static void barrier(void) { MPI_Barrier(ALL); }
static void broadcast(int32_t* buffer, int count) { MPI_Bcast(buffer, count, INTS, 0, ALL); }
static void gather(const int32_t* input, int32_t* output, int count) {
    MPI_Gather(input, count, INTS, output, count, INTS, 0, ALL);
}
static void scatter(const int32_t* input, int32_t* output, int count) {
    MPI_Scatter(input, count, INTS, output, count, INTS, 0, ALL);
}
static void allgather(const int32_t* input, int32_t* output, int count) {
    MPI_Allgather(input, count, INTS, output, count, INTS, ALL);
}
static void alltoall(const int32_t* input, int32_t* output, int count) {
    MPI_Alltoall(input, count, INTS, output, count, INTS, ALL);
}
static void reduce(const int32_t* input, int32_t* output, int count) {
    MPI_Reduce(input, output, count, INTS, MPI_SUM, 0, ALL);
}
static void allreduce(const int32_t* input, int32_t* output, int count) {
    MPI_Allreduce(input, output, count, INTS, MPI_SUM, ALL);
}
static void reduce_scatter(const int32_t* input, int32_t* output, int count) {
    MPI_Reduce_scatter_block(input, output, count, INTS, MPI_SUM, ALL);
}
static void scan(const int32_t* input, int32_t* output, int count) { MPI_Scan(input, output, count, INTS, MPI_SUM, ALL); }

/* Measures half round trips between two ranks of an MPI. Standard input has one request a line: "BYTES BATCHES ROUNDS".
   Answers each with the seconds of one half round trip in the fastest batch of that many rounds. Built and run by
   `cargo run --release --example near`. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void exchange(char *buffer, int bytes, int rank) {
    if (rank == 0) {
        MPI_Send(buffer, bytes, MPI_BYTE, 1, 1, MPI_COMM_WORLD);
        MPI_Recv(buffer, bytes, MPI_BYTE, 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else {
        MPI_Recv(buffer, bytes, MPI_BYTE, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Send(buffer, bytes, MPI_BYTE, 0, 1, MPI_COMM_WORLD);
    }
}

int main(int argc, char **argv) {
    int rank, order[3];
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    char *buffer = calloc(1, 64 << 20);
    for (;;) {
        if (rank == 0) {
            if (scanf("%d %d %d", &order[0], &order[1], &order[2]) != 3 || order[0] > 64 << 20)
                order[1] = 0;
            MPI_Send(order, 3, MPI_INT, 1, 0, MPI_COMM_WORLD);
        } else {
            /* Polls with pauses, so that it does not use a processor on which others are measured. */
            for (int is_there = 0; !is_there; usleep(200))
                MPI_Iprobe(0, 0, MPI_COMM_WORLD, &is_there, MPI_STATUS_IGNORE);
            MPI_Recv(order, 3, MPI_INT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        }
        if (order[1] <= 0)
            break;
        exchange(buffer, order[0], rank);
        double least = 1e9;
        for (int batch = 0; batch < order[1]; batch++) {
            double began = MPI_Wtime();
            for (int round = 0; round < order[2]; round++)
                exchange(buffer, order[0], rank);
            double took = (MPI_Wtime() - began) / order[2] / 2;
            if (took < least)
                least = took;
        }
        if (rank == 0) {
            printf("%.9f\n", least);
            fflush(stdout);
        }
    }
    free(buffer);
    MPI_Finalize();
    return 0;
}

/* Times MPI_Allreduce as `ringfold perf --rewrite` times its own: one store to every cache line of the input and a
 * barrier before each call, both untimed; each iteration's time is the slowest rank's.
 *
 * Usage: allreduce_mpi ITERATIONS IN_PLACE BYTES...   Prints for each size: bytes, first, then every iteration, in us. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LINE_FLOATS 16

static double call_us(float *input, float *output, int count, int in_place) {
    for (int i = 0; i < count; i += LINE_FLOATS) input[i] = 0;
    MPI_Barrier(MPI_COMM_WORLD);
    double begin = MPI_Wtime();
    MPI_Allreduce(in_place ? MPI_IN_PLACE : input, in_place ? input : output, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    return (MPI_Wtime() - begin) * 1e6;
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank, iterations = atoi(argv[1]), in_place = atoi(argv[2]);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    double *times = malloc(sizeof(double) * (iterations + 1)), *slowest = malloc(sizeof(double) * (iterations + 1));
    for (int arg = 3; arg < argc; arg++) {
        size_t bytes = strtoull(argv[arg], NULL, 10);
        int count = bytes / sizeof(float);
        float *input = malloc(bytes), *output = malloc(bytes);
        memset(input, 0, bytes);
        memset(output, 0, bytes);
        for (int i = 0; i <= iterations; i++) times[i] = call_us(input, output, count, in_place);
        MPI_Reduce(times, slowest, iterations + 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
        if (rank == 0) {
            printf("%zu", bytes);
            for (int i = 0; i <= iterations; i++) printf(" %.3f", slowest[i]);
            printf("\n");
            fflush(stdout);
        }
        free(input);
        free(output);
    }
    free(times);
    free(slowest);
    MPI_Finalize();
}

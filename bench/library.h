/* An all-reduce of a library that MPI only starts, for collectives_mpi.c compiled with -DLIBRARY: float sums, over all
 * ranks of MPI_COMM_WORLD. A failed call ends the job. */
#ifdef __cplusplus
extern "C" {
#endif

void library_begin(int rank, int ranks);
/* Sums `count` floats into `output`, which may be `input`. */
void library_all_reduce(float *input, float *output, int count);
void library_barrier(void);

#ifdef __cplusplus
}
#endif

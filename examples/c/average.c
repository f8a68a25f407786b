/* Averages a vector over all ranks.
 *
 * After crates/ringfold-c/install.sh, which installs the file that pkg-config reads:
 *
 *   cc average.c -o average $(pkg-config --cflags --libs ringfold)
 *   ringfold run --ranks 4 -- ./average
 */
#include <ringfold.h>
#include <stdio.h>
#include <stdlib.h>

/* Ends the program if a call failed. The message names the call and the ranks at fault. */
static void check(ringfold_status_t status) {
    if (status != RINGFOLD_OK) {
        fprintf(stderr, "%s\n", ringfold_error_message());
        exit(1);
    }
}

int main(void) {
    ringfold_comm_t *comm;
    check(ringfold_init(&comm)); /* rank, ranks and address come from the environment */

    float gradient[1000];
    for (int i = 0; i < 1000; i++) {
        gradient[i] = (float)ringfold_rank(comm);
    }
    check(ringfold_all_reduce(comm, gradient, gradient, 1000, RINGFOLD_FLOAT32, RINGFOLD_AVG));
    printf("rank %d of %d: %g\n", ringfold_rank(comm), ringfold_world_size(comm), gradient[0]);

    check(ringfold_close(comm));
    ringfold_free(comm);
    return 0;
}

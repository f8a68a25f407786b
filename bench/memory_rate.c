/* Measures how fast this machine's memory is read and written by several processes at once.
 *
 * Usage: memory_rate PROCESSES BYTES MS   BYTES is all processes' memory together, to be far larger than the last cache.
 *
 * Every process adds 1 to each float of memory of its own, over and over, on a core of its own as far as there are
 * cores. An update in place reads and writes each line once and nothing else, whatever the CPU does about stores that
 * miss. Memory is on huge pages where the kernel gives them, because the limit is to be the memory's and not that of
 * address translation. Prints bytes read and written per second, all processes together, in 10^9. */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* What is updated between two looks at the clock's verdict. */
#define PIECE_BYTES (1 << 20)

typedef struct {
    atomic_int ready, started, stopped;
    atomic_ullong pieces;
} shared_t;

static void *mapped(size_t bytes, int flags) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        perror("memory_rate: mmap");
        exit(1);
    }
    return memory;
}

/* Binds this process to the core that is its turn among those it may use. */
static void bind_to_core(int process) {
    cpu_set_t allowed, own;
    sched_getaffinity(0, sizeof allowed, &allowed);
    int turn = process % CPU_COUNT(&allowed);
    for (int core = 0; core < CPU_SETSIZE; core++) {
        if (!CPU_ISSET(core, &allowed) || turn-- > 0) continue;
        CPU_ZERO(&own);
        CPU_SET(core, &own);
        sched_setaffinity(0, sizeof own, &own);
        return;
    }
}

static void update(shared_t *shared, int process, size_t bytes) {
    bind_to_core(process);
    float *data = mapped(bytes, MAP_PRIVATE);
    madvise(data, bytes, MADV_HUGEPAGE);
    memset(data, 0, bytes);
    atomic_fetch_add(&shared->ready, 1);
    while (!atomic_load(&shared->started)) sched_yield();
    for (size_t at = 0; !atomic_load(&shared->stopped); at = (at + PIECE_BYTES) % bytes) {
        float *piece = data + at / sizeof *data;
        for (size_t i = 0; i < PIECE_BYTES / sizeof *piece; i++) piece[i] += 1;
        atomic_fetch_add(&shared->pieces, 1);
    }
}

static double now_s(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

int main(int argc, char **argv) {
    int processes = argc == 4 ? atoi(argv[1]) : 0;
    if (processes < 1) {
        fprintf(stderr, "usage: memory_rate PROCESSES BYTES MS\n");
        return 2;
    }
    size_t bytes = strtoull(argv[2], NULL, 10) / processes / PIECE_BYTES * PIECE_BYTES + PIECE_BYTES;
    shared_t *shared = mapped(sizeof *shared, MAP_SHARED);
    for (int process = 0; process < processes; process++) {
        if (fork() == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            update(shared, process, bytes);
            _exit(0);
        }
    }
    while (atomic_load(&shared->ready) < processes) {
        /* A process that could not get its memory has said so. */
        if (waitpid(-1, NULL, WNOHANG) != 0) return 1;
        usleep(1000);
    }
    double begin_s = now_s();
    atomic_store(&shared->started, 1);
    usleep(atoi(argv[3]) * 1000);
    double pieces = atomic_load(&shared->pieces), seconds = now_s() - begin_s;
    atomic_store(&shared->stopped, 1);
    while (wait(NULL) > 0) continue;
    printf("%.3f\n", pieces * 2 * PIECE_BYTES / seconds / 1e9);
}

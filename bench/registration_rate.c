/* Measures what registering memory with an RDMA device costs, beside copying it.
 *
 * Usage: registration_rate DEVICE ROUNDS BUDGET_MS BYTES...
 *
 * A device reads and writes registered memory only; data elsewhere is registered for a call, or copied. Memory is on
 * pages of 4 KiB (`small`) or on huge ones (`huge`), and written before. A round does each of these once, in turn:
 * ibv_reg_mr with ibv_dereg_mr, for peers' writes; and memcpy into other memory on pages of the same kind. At each size
 * there are at most ROUNDS rounds, after one untimed, and no further one after BUDGET_MS. Prints a line for each size,
 * pages, and `register` or `copy`: these, then each round's time, in us. Where the kernel gives no huge pages, it says so
 * on the standard error and prints no such lines. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "rdma_device.h"

#define HUGE_BYTES ((size_t)2 << 20)
#define ACCESS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)

enum { SMALL, HUGE, KINDS };
static const char *const KIND_NAMES[KINDS] = {"small", "huge"};
enum { REGISTER, COPY, WORKS };
static const char *const WORK_NAMES[WORKS] = {"register", "copy"};

/* Memory of one kind: what is registered and copied, and where to; NULL where there is none. */
typedef struct {
    char *from, *to;
} memory_t;

static size_t rounded(size_t bytes) {
    return (bytes + HUGE_BYTES - 1) / HUGE_BYTES * HUGE_BYTES;
}

/* Written memory that begins at a multiple of a huge page's size. */
static char *written(size_t bytes, int advice) {
    char *mapped = mmap(NULL, bytes + HUGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) fail("mmap");
    char *start = (char *)(((uintptr_t)mapped + HUGE_BYTES - 1) / HUGE_BYTES * HUGE_BYTES);
    /* A kernel without huge pages refuses; what it gave is seen by `is_huge`. */
    (void)madvise(start, bytes, advice);
    memset(start, 1, bytes);
    return start;
}

/* Whether all of the memory is on huge pages, by the kernel's list of mappings. */
static int is_huge(const char *start, size_t bytes) {
    FILE *maps = fopen("/proc/self/smaps", "r");
    if (maps == NULL) fail("/proc/self/smaps");
    char line[512];
    uintptr_t begin = 0, end = 0, low, high;
    size_t kib, huge_kib = 0;
    while (fgets(line, sizeof line, maps) != NULL) {
        if (sscanf(line, "%lx-%lx ", &low, &high) == 2) begin = low, end = high;
        int is_inside = begin < (uintptr_t)start + bytes && end > (uintptr_t)start;
        if (is_inside && sscanf(line, "AnonHugePages: %zu kB", &kib) == 1) huge_kib += kib;
    }
    fclose(maps);
    return huge_kib * 1024 >= bytes;
}

static memory_t memory_of(int kind, size_t bytes) {
    char *both = written(2 * bytes, kind == HUGE ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    if (kind == HUGE && !is_huge(both, 2 * bytes)) {
        fprintf(stderr, "registration_rate: this machine gives no %zu bytes on huge pages\n", 2 * bytes);
        return (memory_t){NULL, NULL};
    }
    return (memory_t){both, both + bytes};
}

static double time_us(struct ibv_pd *domain, const memory_t *memory, int work, size_t bytes) {
    double begin_us = now_us();
    if (work == REGISTER) {
        struct ibv_mr *registered = ibv_reg_mr(domain, memory->from, bytes, ACCESS);
        if (registered == NULL) fail("ibv_reg_mr, see ulimit -l");
        if (ibv_dereg_mr(registered) != 0) fail("ibv_dereg_mr");
    } else {
        memcpy(memory->to, memory->from, bytes);
        /* Or the compiler leaves out a copy that nobody reads. */
        __asm__ volatile("" ::: "memory");
    }
    return now_us() - begin_us;
}

static void measure(struct ibv_pd *domain, const memory_t memory[KINDS], size_t bytes, int rounds, double budget_us) {
    double *times_us[KINDS][WORKS];
    for (int i = 0; i < KINDS * WORKS; i++) {
        times_us[i / WORKS][i % WORKS] = calloc(rounds + 1, sizeof(double));
        if (times_us[i / WORKS][i % WORKS] == NULL) fail("calloc");
    }
    int done = 0;
    for (double end_us = now_us() + budget_us; done <= rounds && (done < 2 || now_us() < end_us); done++)
        for (int kind = 0; kind < KINDS; kind++)
            for (int work = 0; work < WORKS && memory[kind].from != NULL; work++)
                times_us[kind][work][done] = time_us(domain, &memory[kind], work, bytes);
    for (int i = 0; i < KINDS * WORKS; i++) {
        double *times = times_us[i / WORKS][i % WORKS];
        if (memory[i / WORKS].from != NULL) {
            printf("%zu %s %s", bytes, KIND_NAMES[i / WORKS], WORK_NAMES[i % WORKS]);
            for (int round = 1; round < done; round++) printf(" %.3f", times[round]);
            printf("\n");
        }
        free(times);
    }
}

int main(int argc, char **argv) {
    int rounds = argc > 4 ? atoi(argv[2]) : 0;
    if (rounds < 1) {
        fprintf(stderr, "usage: registration_rate DEVICE ROUNDS BUDGET_MS BYTES...\n");
        return 2;
    }
    struct ibv_pd *domain = ibv_alloc_pd(opened(argv[1]));
    if (domain == NULL) fail("ibv_alloc_pd");
    size_t most = 0;
    for (int arg = 4; arg < argc; arg++) {
        size_t bytes = strtoull(argv[arg], NULL, 10);
        if (bytes > most) most = bytes;
    }
    memory_t memory[KINDS];
    for (int kind = 0; kind < KINDS; kind++) memory[kind] = memory_of(kind, rounded(most));
    for (int arg = 4; arg < argc; arg++)
        measure(domain, memory, strtoull(argv[arg], NULL, 10), rounds, atof(argv[3]) * 1e3);
}

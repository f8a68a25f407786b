//! Variables that describe a job of several ranks, in a process that is a job of one.

use crate::env::Lookup;

/// Variables of which one suffices to suspect a job, and a text about the missing ones.
struct PartialLaunch {
    there: &'static [&'static str],
    missing: &'static str,
    /// Whether the values describe a single process.
    is_alone: fn(Lookup<'_>) -> bool,
}

const HALVES: [PartialLaunch; 7] = [
    PartialLaunch {
        there: &[
            "RINGFOLD_ADDR",
            "RINGFOLD_LOCAL_RANK",
            "RINGFOLD_LOCAL_WORLD_SIZE",
        ],
        missing: "RINGFOLD_RANK and RINGFOLD_WORLD_SIZE are missing",
        is_alone: never,
    },
    PartialLaunch {
        there: &["JOB_COMPLETION_INDEX"],
        missing: "RINGFOLD_WORLD_SIZE, the number of pods, is missing",
        is_alone: never,
    },
    PartialLaunch {
        there: &[
            "PET_NNODES",
            "PET_NODE_RANK",
            "PET_NPROC_PER_NODE",
            "PET_MASTER_ADDR",
        ],
        missing: "they are for torchrun; start the program with it",
        is_alone: is_single_agent,
    },
    PartialLaunch {
        there: &[
            "MASTER_ADDR",
            "MASTER_PORT",
            "LOCAL_RANK",
            "LOCAL_WORLD_SIZE",
            "GROUP_RANK",
            "NODE_RANK",
        ],
        missing: "RANK and WORLD_SIZE are missing",
        is_alone: never,
    },
    PartialLaunch {
        there: &["SLURM_NTASKS", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"],
        missing: "a step sets SLURM_PROCID and SLURM_STEP_NUM_TASKS; start the program with srun \
                  or mpirun",
        is_alone: is_single_task,
    },
    PartialLaunch {
        there: &[
            "OMPI_COMM_WORLD_LOCAL_RANK",
            "MPI_LOCALRANKID",
            "MV2_COMM_WORLD_LOCAL_RANK",
        ],
        missing: "the MPI's rank and world size are missing",
        is_alone: never,
    },
    PartialLaunch {
        there: &[
            "PMIX_RANK",
            "FLUX_TASK_RANK",
            "PALS_RANKID",
            "JSM_NAMESPACE_RANK",
            "ALPS_APP_PE",
        ],
        missing: "ringfold does not know this launcher; set RINGFOLD_RANK and RINGFOLD_WORLD_SIZE",
        is_alone: never,
    },
];

/// Returns a warning about incomplete places in the variables, for a job of one rank.
pub(super) fn remark(lookup: Lookup<'_>) -> Option<String> {
    let found = HALVES.iter().filter_map(|half| {
        let there = half.there.iter();
        let there = there.filter_map(|name| Some(format!("{name}={}", lookup(name)?)));
        let there: Vec<String> = there.collect();
        let counts = !there.is_empty() && !(half.is_alone)(lookup);
        counts.then(|| format!("{}: {}", there.join(", "), half.missing))
    });
    let found: Vec<String> = found.collect();
    (!found.is_empty()).then(|| {
        format!(
            "this process is a job of one rank, but its environment partly describes a larger job \
             ({})",
            found.join("; ")
        )
    })
}

fn never(_: Lookup<'_>) -> bool {
    false
}

fn is_one_or_absent(lookup: Lookup<'_>, name: &str) -> bool {
    lookup(name).is_none_or(|text| text.trim() == "1")
}

/// Whether torchrun would start one process on one node.
fn is_single_agent(lookup: Lookup<'_>) -> bool {
    lookup("PET_NNODES").is_some()
        && ["PET_NNODES", "PET_NPROC_PER_NODE"]
            .into_iter()
            .all(|name| is_one_or_absent(lookup, name))
}

/// Whether Slurm runs one task; a batch script has rank 0, too.
fn is_single_task(lookup: Lookup<'_>) -> bool {
    lookup("SLURM_PROCID").is_none_or(|text| text.trim() == "0")
        && ["SLURM_NTASKS", "SLURM_STEP_NUM_TASKS"]
            .into_iter()
            .all(|name| is_one_or_absent(lookup, name))
}

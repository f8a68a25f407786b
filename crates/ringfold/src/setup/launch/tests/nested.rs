//! Tests of variables of several launchers, and of half places.

use super::*;

/// Splits a text of variables: `NAME=value NAME=value`.
fn pairs(text: &str) -> Vec<(&str, &str)> {
    let words = text.split_whitespace();
    words.map(|word| word.split_once('=').unwrap()).collect()
}

/// Returns origin, rank and world size, or the error. `ages` counts the ancestors that have a
/// variable.
fn place(variables: &[&str], ages: &[(&str, usize)]) -> String {
    let text = variables.join(" ");
    let pairs = pairs(&text);
    let lookup = |name: &str| {
        let found = pairs.iter().find(|(key, _)| *key == name);
        found.map(|(_, value)| value.to_string())
    };
    let age = |name: &&str| {
        let found = ages.iter().find(|(key, _)| key == name);
        found.map_or(0, |(_, age)| *age)
    };
    let ancestry = |names: &[&str]| names.iter().map(age).min().unwrap_or(0);
    let explicit = Explicit {
        has_listener: true,
        ..Explicit::default()
    };
    match Launch::resolve(&explicit, &lookup, &ancestry, IDENTITY) {
        Ok(launch) => format!("{} {}/{}", launch.origin, launch.rank, launch.world_size),
        Err(error) => error.to_string(),
    }
}

const DAEMON: &str = "SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 SLURM_LOCALID=0";
const HYDRA: &str = "PMI_RANK=2 PMI_SIZE=4 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=2";
const OPEN_MPI: &str = "OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=4 \
                        OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=2";
const AGENT: &str = "RANK=3 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2";

#[test]
fn the_launcher_that_started_the_ranks_decides() {
    let table: [(&[&str], &str); 14] = [
        (&[HYDRA, DAEMON], "PMI 2/4"),
        (&[OPEN_MPI, DAEMON], "Open MPI 2/4"),
        // One daemon, and an interactive step of one task.
        (
            &[OPEN_MPI, "SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1"],
            "Open MPI 2/4",
        ),
        (
            &["PMI_RANK=1 PMI_SIZE=2 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1"],
            "PMI 1/2",
        ),
        // One rank on each node, numbered differently from the daemons.
        (
            &[
                "PMI_RANK=0 PMI_SIZE=2 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=1",
                DAEMON,
            ],
            "PMI 0/2",
        ),
        // srun --mpi=pmi2: both places are the same, and Slurm's variables tell more.
        (&["PMI_RANK=1 PMI_SIZE=2", DAEMON], "Slurm 1/2"),
        // A batch script's own variables are no place.
        (&[OPEN_MPI, "SLURM_PROCID=0 SLURM_NTASKS=4"], "Open MPI 2/4"),
        // MVAPICH's launcher sets both.
        (
            &["MV2_COMM_WORLD_RANK=2 MV2_COMM_WORLD_SIZE=4", HYDRA],
            "PMI 2/4",
        ),
        (&[AGENT, DAEMON], "torchrun 3/4"),
        // An elastic torchrun renumbers its agents.
        (
            &[
                "RANK=0 WORLD_SIZE=4 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 TORCHELASTIC_RUN_ID=x",
                DAEMON,
            ],
            "torchrun 0/4",
        ),
        (
            &[
                "RANK=4 WORLD_SIZE=5 LOCAL_WORLD_SIZE=1 GROUP_WORLD_SIZE=2 TORCHELASTIC_RUN_ID=x",
                DAEMON,
            ],
            "torchrun 4/5",
        ),
        // Set by hand, from the launcher's variables.
        (
            &["RANK=1 WORLD_SIZE=2 LOCAL_RANK=0", DAEMON],
            "torchrun 1/2",
        ),
        (&["RANK=2 WORLD_SIZE=4", OPEN_MPI, DAEMON], "Open MPI 2/4"),
        (
            &[AGENT, "JOB_COMPLETION_INDEX=1 RINGFOLD_WORLD_SIZE=2"],
            "torchrun 3/4",
        ),
    ];
    for (variables, expected) in table {
        assert_eq!(place(variables, &[]), expected, "{variables:?}");
    }
}

#[test]
fn contradictory_launchers_make_no_job() {
    let table: [(&[&str], [&str; 2]); 11] = [
        // More daemons than ranks.
        (
            &["PMI_RANK=0 PMI_SIZE=1 MPI_LOCALRANKID=0", DAEMON],
            ["PMI_RANK=0", "SLURM_PROCID=1"],
        ),
        (
            &["PMI_RANK=0 PMI_SIZE=2", DAEMON],
            ["PMI_SIZE=2", "SLURM_STEP_NUM_TASKS=2"],
        ),
        // A second task of a node is no daemon.
        (
            &[
                HYDRA,
                "SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 SLURM_LOCALID=1",
            ],
            ["MPI_LOCALRANKID=0", "SLURM_LOCALID=1"],
        ),
        (
            &[OPEN_MPI, "PMI_RANK=0 PMI_SIZE=1"],
            ["OMPI_COMM_WORLD_RANK=2", "PMI_RANK=0"],
        ),
        (
            &["OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1", HYDRA],
            ["OMPI_COMM_WORLD_SIZE=1", "PMI_SIZE=4"],
        ),
        (
            &["RANK=0 WORLD_SIZE=2", DAEMON],
            ["RANK=0", "SLURM_PROCID=1"],
        ),
        (
            &["RANK=0 WORLD_SIZE=1", OPEN_MPI],
            ["WORLD_SIZE=1", "OMPI_COMM_WORLD_SIZE=4"],
        ),
        (
            &[
                "RANK=1 WORLD_SIZE=2 LOCAL_RANK=1",
                "SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 SLURM_LOCALID=0",
            ],
            ["LOCAL_RANK=1", "SLURM_LOCALID=0"],
        ),
        // Set by hand, on the wrong node.
        (
            &[
                "RANK=0 WORLD_SIZE=4 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2",
                DAEMON,
            ],
            ["RANK=0", "SLURM_PROCID=1"],
        ),
        // Another number of agents.
        (
            &[AGENT, "SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=3"],
            ["WORLD_SIZE=4", "SLURM_STEP_NUM_TASKS=3"],
        ),
        (
            &[DAEMON, "JOB_COMPLETION_INDEX=0 RINGFOLD_WORLD_SIZE=3"],
            ["SLURM_PROCID=1", "JOB_COMPLETION_INDEX=0"],
        ),
    ];
    for (variables, names) in table {
        let said = place(variables, &[]);
        for part in ["contradictory", names[0], names[1]] {
            assert!(said.contains(part), "{variables:?}: {said}");
        }
    }
}

#[test]
fn ancestors_show_which_launcher_is_newer() {
    let outer_slurm = [("SLURM_PROCID", 1), ("SLURM_STEP_NUM_TASKS", 1)];
    let outer_pmi = [("PMI_RANK", 2), ("PMI_SIZE", 2)];
    let lone = "PMI_RANK=0 PMI_SIZE=1 MPI_LOCALRANKID=0";
    // Two mpiruns in a step of two tasks, or srun in a rank.
    assert_eq!(place(&[lone, DAEMON], &outer_slurm), "PMI 0/1");
    assert_eq!(place(&[lone, DAEMON], &outer_pmi), "Slurm 1/2");
    assert_eq!(place(&[OPEN_MPI, lone], &outer_pmi), "Open MPI 2/4");
    // Variables that a script sets are not a launcher's, however new they are.
    let said = place(&["RANK=0 WORLD_SIZE=2", DAEMON], &outer_slurm);
    assert!(said.contains("contradictory"), "{said}");
}

#[test]
fn an_inherited_place_is_not_given_to_all_ranks_of_a_launcher() {
    let own = "RINGFOLD_RANK=0 RINGFOLD_WORLD_SIZE=1";
    let inherited = [("RINGFOLD_RANK", 2), ("RINGFOLD_WORLD_SIZE", 2)];
    let said = place(&[own, OPEN_MPI], &inherited);
    for part in ["RINGFOLD_RANK=0", "OMPI_COMM_WORLD_RANK=2"] {
        assert!(said.contains(part), "{said}");
    }
    // A place that is set for this process has precedence over the launcher's.
    let given = [("OMPI_COMM_WORLD_RANK", 2), ("OMPI_COMM_WORLD_SIZE", 2)];
    assert_eq!(place(&[own, OPEN_MPI], &given), "RINGFOLD_* 0/1");
    assert_eq!(place(&[own, OPEN_MPI], &[]), "RINGFOLD_* 0/1");
}

#[test]
fn an_mpi_in_a_slurm_job_meets_at_its_first_host() {
    let job = "SLURM_JOB_ID=100 SLURM_JOB_NODELIST=node[01-04] PMIX_NAMESPACE=a@1";
    let address = |variables: &[&str]| {
        let text = [variables, &[OPEN_MPI, job]].concat().join(" ");
        texts(&resolve(&pairs(&text)).unwrap()).remove(0)
    };
    // The same on the node of the batch script, which is in no step, and on others.
    let there = address(&[DAEMON, "SLURM_STEP_ID=0 SLURM_STEP_NODELIST=node[02-04]"]);
    assert!(there.starts_with("node01:6"), "{there}");
    assert_eq!(address(&["SLURM_PROCID=0"]), there);
}

#[test]
fn half_a_place_is_said() {
    let halves = [
        "JOB_COMPLETION_INDEX=1",
        "MASTER_ADDR=node0 MASTER_PORT=29500",
        "PET_NNODES=2 PET_NODE_RANK=1",
        "PET_NNODES=1 PET_NPROC_PER_NODE=4",
        "LOCAL_RANK=1",
        "SLURM_PROCID=0 SLURM_NTASKS=8",
        "SLURM_STEP_NUM_TASKS=2",
        "OMPI_COMM_WORLD_LOCAL_RANK=0",
        "FLUX_TASK_RANK=3",
        "RINGFOLD_ADDR=node0:7",
    ];
    for text in halves {
        let pairs = pairs(text);
        let launch = resolve(&pairs).unwrap();
        assert_eq!((launch.rank, launch.world_size), (0, 1), "{text}");
        let remark = launch.remark.expect(text);
        for (name, _) in pairs {
            assert!(remark.contains(name), "{remark}");
        }
    }
    let whole = [
        "",
        "SLURM_PROCID=0 SLURM_NTASKS=1",
        "PET_NNODES=1 PET_NODE_RANK=0 PET_NPROC_PER_NODE=1",
        "RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 MASTER_ADDR=a MASTER_PORT=1",
    ];
    for text in whole {
        assert_eq!(resolve(&pairs(text)).unwrap().remark, None, "{text}");
    }
}

//! Tests of each launcher, and of the precedence among launchers, variables and arguments.

use super::slurm::first_host;
use super::*;

mod nested;

const IDENTITY: ProcessIdentity = ProcessIdentity {
    uid: 1000,
    parent_pid: 4711,
};

fn resolve(pairs: &[(&str, &str)]) -> Result<Launch> {
    resolve_with(&Explicit::default(), pairs)
}

fn resolve_with(explicit: &Explicit, pairs: &[(&str, &str)]) -> Result<Launch> {
    let lookup = |name: &str| {
        let found = pairs.iter().find(|(key, _)| *key == name);
        found.map(|(_, value)| value.to_string())
    };
    Launch::resolve(explicit, &lookup, &|_| 0, IDENTITY)
}

fn texts(launch: &Launch) -> Vec<String> {
    launch
        .addresses
        .iter()
        .map(RendezvousAddress::to_string)
        .collect()
}

fn summary(pairs: &[(&str, &str)]) -> String {
    match resolve(pairs) {
        Ok(launch) => format!(
            "{} {}/{} {} {}",
            launch.origin,
            launch.rank,
            launch.world_size,
            launch
                .local_world_size
                .map_or("?".into(), |n| n.to_string()),
            match launch.addresses.is_empty() {
                true => "-".into(),
                false => texts(&launch).join(","),
            }
        ),
        Err(error) => error.to_string(),
    }
}

const TORCHRUN: [(&str, &str); 6] = [
    ("RANK", "3"),
    ("WORLD_SIZE", "8"),
    ("LOCAL_RANK", "1"),
    ("LOCAL_WORLD_SIZE", "2"),
    ("MASTER_ADDR", "node1"),
    ("MASTER_PORT", "29500"),
];
const SLURM: [(&str, &str); 8] = [
    ("SLURM_PROCID", "5"),
    ("SLURM_STEP_NUM_TASKS", "7"),
    ("SLURM_LOCALID", "1"),
    ("SLURM_NODEID", "2"),
    ("SLURM_STEP_TASKS_PER_NODE", "2(x3),1"),
    ("SLURM_STEP_NODELIST", "node[01-04,7]"),
    ("SLURM_JOB_ID", "100"),
    ("SLURM_STEP_ID", "1"),
];

#[test]
fn without_any_variable_the_process_is_alone() {
    assert_eq!(summary(&[]), "no launcher 0/1 1 -");
}

#[test]
fn every_launcher_is_understood() {
    assert_eq!(summary(&TORCHRUN), "torchrun 3/8 2 node1:29501");
    assert_eq!(summary(&SLURM), "Slurm 5/7 2 node01:61791");
    let open_mpi = [
        ("OMPI_COMM_WORLD_RANK", "1"),
        ("OMPI_COMM_WORLD_SIZE", "4"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
        ("RINGFOLD_ADDR", "10.0.0.1:7"),
    ];
    assert_eq!(summary(&open_mpi), "Open MPI 1/4 2 10.0.0.1:7");
    let pmi = [
        ("PMI_RANK", "1"),
        ("PMI_SIZE", "4"),
        ("RINGFOLD_ADDR", "h:7"),
    ];
    assert_eq!(summary(&pmi), "PMI 1/4 ? h:7");
    let mvapich = [
        ("MV2_COMM_WORLD_RANK", "0"),
        ("MV2_COMM_WORLD_SIZE", "2"),
        ("RINGFOLD_ADDR", "h:7"),
    ];
    assert_eq!(summary(&mvapich), "MVAPICH 0/2 ? h:7");
    let kubernetes = [
        ("JOB_COMPLETION_INDEX", "2"),
        ("RINGFOLD_WORLD_SIZE", "3"),
        ("RINGFOLD_ADDR", "job-0.svc:7"),
    ];
    assert_eq!(summary(&kubernetes), "Kubernetes 2/3 ? job-0.svc:7");
}

#[test]
fn arguments_go_before_variables_and_those_before_launchers() {
    let mut pairs = TORCHRUN.to_vec();
    pairs.extend([("RINGFOLD_RANK", "0"), ("RINGFOLD_WORLD_SIZE", "2")]);
    assert_eq!(summary(&pairs), "RINGFOLD_* 0/2 ? node1:29501");
    let explicit = Explicit {
        rank: Some(1),
        world_size: None,
        addresses: vec!["unix:@x".parse().unwrap()],
        ..Explicit::default()
    };
    let launch = resolve_with(&explicit, &pairs).unwrap();
    assert_eq!((launch.rank, launch.world_size), (1, 2));
    assert_eq!(texts(&launch), ["unix:@x"]);
}

#[test]
fn ranks_of_the_callers_own_making_have_nothing_of_the_launcher() {
    let mut pairs = TORCHRUN.to_vec();
    pairs.extend([
        ("RINGFOLD_LOCAL_WORLD_SIZE", "2"),
        ("JOB_COMPLETION_INDEX", "x"),
    ]);
    let explicit = Explicit {
        rank: Some(1),
        world_size: Some(2),
        addresses: vec!["10.0.0.1:7".parse().unwrap()],
        ..Explicit::default()
    };
    let launch = resolve_with(&explicit, &pairs).unwrap();
    assert_eq!((launch.rank, launch.world_size), (1, 2));
    assert_eq!(texts(&launch), ["10.0.0.1:7"]);
    let host = Explicit {
        rank: Some(0),
        addresses: Vec::new(),
        has_listener: true,
        ..explicit
    };
    assert_eq!(texts(&resolve_with(&host, &pairs).unwrap()).len(), 0);
}

#[test]
fn several_places_are_taken_as_they_are() {
    let given = "unix:@a,localhost:7,10.0.0.1:7";
    let pairs = [
        ("RINGFOLD_RANK", "0"),
        ("RINGFOLD_WORLD_SIZE", "2"),
        ("RINGFOLD_ADDR", given),
    ];
    assert!(summary(&pairs).ends_with(given), "{}", summary(&pairs));
}

#[test]
fn half_a_place_is_an_error_that_names_the_other_half() {
    let halves = [
        ("RINGFOLD_RANK", "RINGFOLD_WORLD_SIZE"),
        ("RINGFOLD_WORLD_SIZE", "RINGFOLD_RANK"),
        ("RANK", "WORLD_SIZE"),
        ("WORLD_SIZE", "RANK"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ];
    for (there, missing) in halves {
        let error = summary(&[(there, "1")]);
        assert!(error.contains(missing), "{error}");
    }
}

#[test]
fn nonsense_is_refused_by_name() {
    assert!(summary(&[("RANK", "x"), ("WORLD_SIZE", "2")]).contains("RANK"));
    assert!(summary(&[("RANK", "2"), ("WORLD_SIZE", "2")]).contains("invalid rank"));
    let without_address = [("PMI_RANK", "1"), ("PMI_SIZE", "4")];
    assert!(summary(&without_address).contains("RINGFOLD_ADDR"));
    let mut last_port = TORCHRUN;
    last_port[5].1 = "65535";
    assert!(summary(&last_port).contains("MASTER_PORT"));
}

#[test]
fn ranks_of_one_host_meet_at_a_unix_socket() {
    let mut local = TORCHRUN;
    local[3].1 = "8";
    assert!(summary(&local).ends_with("unix:@ringfold-1000-29501"));
    let loopback = [
        ("RINGFOLD_RANK", "0"),
        ("RINGFOLD_WORLD_SIZE", "2"),
        ("RINGFOLD_ADDR", "localhost:7"),
    ];
    assert!(summary(&loopback).ends_with("unix:@ringfold-1000-7"));
}

#[test]
fn mpirun_on_one_host_needs_no_address() {
    let job = |namespace: &'static str| {
        [
            ("OMPI_COMM_WORLD_RANK", "1"),
            ("OMPI_COMM_WORLD_SIZE", "2"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
            ("PMIX_NAMESPACE", namespace),
        ]
    };
    let first = resolve(&job("a@1")).unwrap().addresses.remove(0);
    let again = resolve(&job("a@1")).unwrap().addresses.remove(0);
    let other = resolve(&job("b@1")).unwrap().addresses.remove(0);
    assert_eq!(first, again);
    assert_ne!(first, other);
    // The name is valid as an address.
    first.to_string().parse::<RendezvousAddress>().unwrap();
}

#[test]
fn slurm_lists_begin_with_their_first_host() {
    let lists = [
        ("node1", "node1"),
        ("node[01-04,7]", "node01"),
        ("node[3]", "node3"),
        ("a,b", "a"),
        ("rack[1-2]n[05-06].x,login", "rack1n05.x"),
    ];
    for (list, first) in lists {
        assert_eq!(first_host(list).unwrap(), first);
    }
    for broken in ["", "node[1", ","] {
        assert_eq!(first_host(broken), None, "{broken}");
    }
}

#[test]
fn a_secret_hides_the_name_that_follows_from_a_port() {
    let place = |secret: &'static str| {
        let mut pairs = vec![
            ("RINGFOLD_RANK", "1"),
            ("RINGFOLD_WORLD_SIZE", "2"),
            ("RINGFOLD_ADDR", "127.0.0.1:7"),
        ];
        pairs.extend((!secret.is_empty()).then_some(("RINGFOLD_SECRET", secret)));
        let launch = resolve(&pairs).unwrap();
        (texts(&launch).remove(0), launch.public_name)
    };
    let public: RendezvousAddress = "unix:@ringfold-1000-7".parse().unwrap();
    assert_eq!(place(""), (public.to_string(), None));
    let (hidden, known) = place("one secret");
    assert_eq!(known, Some(public.clone()));
    assert_eq!(place("one secret").0, hidden);
    assert!(hidden.starts_with("unix:@ringfold-1000-") && hidden != public.to_string());
    assert_ne!(place("another secret").0, hidden);
}

//! Software RDMA devices of which one call fails: while ranks join, and while they work.
//!
//! Whatever the call, both ranks end with an error that names the call or its rank, or continue
//! with right results, and nothing of the devices is left open.

use crate::endings::{assert_all_good, script};
use crate::job::{Ending, Job, LIBRARY, Plan, software_devices};
use crate::lab::Lab;
use crate::random::Random;
use crate::script::Script;

/// Number of calls after which the ranks end by themselves.
const ITERATIONS: u64 = 6;

/// Functions that ranks call while they join and work.
const FUNCTIONS: [&str; 13] = [
    "get_device_list",
    "open_device",
    "query_port",
    "query_gid",
    "alloc_pd",
    "create_comp_channel",
    "create_cq",
    "create_qp",
    "modify_qp",
    "reg_mr",
    "post_recv",
    "post_send",
    "poll_cq",
];

/// A function that only sleeping ranks call.
const WAITING: &str = "req_notify_cq";

/// Functions whose failure ranks can work around: by another device or port, a queue pair with less
/// inline data, or by copying the memory of a call.
const CAN_BE_SPARED: [&str; 8] = [
    "get_device_list",
    "open_device",
    "query_port",
    "query_gid",
    "alloc_pd",
    "create_qp",
    "modify_qp",
    "reg_mr",
];

/// Functions that ranks also call to leave, when all calls are done: then a failure costs nothing.
/// Before, a failure that no rank saw would leave a call waiting, which the watchdog detects.
const ALSO_LEAVING: [&str; 1] = ["post_send"];

fn work() -> Script {
    Script {
        iterations: ITERATIONS,
        ..script("all_reduce", 300_000)
    }
}

/// Starts two ranks; the devices of `odd` have `fault`.
fn start(plan: &Plan, odd: usize, fault: &str, add: impl Fn(&mut Job, usize)) -> Job {
    let mut job = plan.empty();
    for rank in 0..plan.world_size {
        let mut variables = plan.variables.clone();
        if rank == odd {
            variables.push(("SOFTVERBS_FAULTS", fault.to_string()));
        }
        job.plan.variables = variables;
        add(&mut job, rank);
    }
    job
}

/// Makes the `at`-th call of `function` on rank `odd` fail. Returns whether the call was made.
fn fail(function: &str, at: u64, odd: usize) -> bool {
    println!("{function}, call {at} of rank {odd}");
    let plan = Plan::new(2, "rdma", work());
    let fault = format!("{function}@{at}");
    let job = start(&plan, odd, &fault, |job, rank| job.add(rank, &plan.script));
    let endings = job.finish();
    let has_come = endings[odd].1.due == 0;
    let is_good = |(_, ending): &(usize, Ending)| ending.class.is_empty();
    if endings.iter().all(is_good) {
        let is_known = CAN_BE_SPARED.contains(&function) || ALSO_LEAVING.contains(&function);
        assert!(!has_come || is_known, "no rank sees that {fault} failed");
        assert!(endings.iter().all(|(_, ending)| ending.good == ITERATIONS));
        return has_come;
    }
    assert!(has_come, "{endings:?}");
    let call = format!("ibv_{function}");
    let peer = format!("rank {odd}");
    for (rank, ending) in &endings {
        // A rank may have finished all its calls before.
        let is_through = ending.class.is_empty() && ending.good == ITERATIONS;
        let says = ending.text.contains(&call) || (*rank != odd && ending.text.contains(&peer));
        assert!(is_through || says, "rank {rank} after {fault}: {ending:?}");
    }
    true
}

#[test]
fn a_call_that_fails_is_named_by_every_rank() {
    let mut random = Random::new("calls that fail");
    for function in FUNCTIONS {
        let odd = random.below(2);
        fail(function, 1, odd);
        fail(function, 2 + random.below(200) as u64, 1 - odd);
    }
    fail(WAITING, 1, random.below(2));
}

/// Tests every call; if a function has many, in growing steps.
#[test]
#[ignore = "deep: hundreds of jobs"]
fn each_call_that_fails_is_named_by_every_rank() {
    for function in FUNCTIONS.into_iter().chain([WAITING]) {
        let mut at = 1;
        while fail(function, at, (at % 2) as usize) && at < 20_000 {
            at += 1 + at / 16;
        }
    }
}

/// Functions that ranks call to join before they have agreed on RDMA, and whose failure they cannot
/// work around.
const NEEDED_TO_JOIN: [&str; 3] = ["create_comp_channel", "create_cq", "post_recv"];

#[test]
fn without_a_demand_all_ranks_take_tcp_where_one_cannot_use_its_devices() {
    let Some(lab) = Lab::new(2) else { return };
    let folder = std::env::temp_dir().join(format!("softverbs-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let mut plan = lab.plan(2, "auto", work());
    plan.variables = vec![
        (LIBRARY, software_devices().display().to_string()),
        ("SOFTVERBS_FOLDER", folder.display().to_string()),
    ];
    let transports = |odd: usize, fault: &str| -> Vec<String> {
        let job = start(&plan, odd, fault, |job, rank| {
            lab.add(job, rank, &plan.script);
        });
        let of = |rank: usize| {
            job.rank(rank)
                .await_event("joined")
                .word("transport")
                .into()
        };
        let transports = vec![of(0), of(1)];
        println!("{fault}");
        assert_all_good(&job.finish(), ITERATIONS);
        transports
    };
    assert_eq!(transports(0, ""), ["rdma", "rdma"]);
    for (number, function) in NEEDED_TO_JOIN.into_iter().enumerate() {
        for at in [1, 2] {
            let fault = format!("{function}@{at}");
            assert_eq!(transports(number % 2, &fault), ["tcp", "tcp"], "{fault}");
        }
    }
    assert_eq!(transports(1, "modify_qp@3"), ["tcp", "tcp"]);
    std::fs::remove_dir_all(&folder).expect("our own folder");
    lab.assert_empty();
}

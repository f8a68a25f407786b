//! Software RDMA devices with a fault or an unsuitable setting, and the ranks' errors.

use crate::endings::script;
use crate::job::{Ending, Plan};
use crate::script::Script;

/// Returns the endings of two ranks with the variables `both`; rank 1 also has those of `odd`.
fn endings(both: &[(&'static str, &str)], odd: &[(&'static str, &str)]) -> Vec<(usize, Ending)> {
    let calls = Script {
        iterations: 40,
        ..script("all_reduce", 1 << 20)
    };
    let plan = Plan::new(2, "rdma", calls);
    let mut job = plan.empty();
    for rank in 0..2 {
        let own = if rank == 1 { odd } else { &[] };
        let variables = both.iter().chain(own);
        job.plan.variables = variables
            .map(|(name, value)| (*name, (*value).to_string()))
            .collect();
        job.add(rank, &plan.script);
    }
    job.finish()
}

/// Checks that both ranks fail: rank 1 with all of `due`, rank 0 likewise or by naming rank 1.
fn assert_said(both: &[(&'static str, &str)], odd: &[(&'static str, &str)], due: &[&str]) {
    let endings = endings(both, odd);
    for (rank, ending) in endings {
        assert!(!ending.class.is_empty(), "rank {rank}: {odd:?} is unseen");
        let is_own = rank == 1 || odd.is_empty();
        let says_all = due.iter().all(|due| ending.text.contains(due));
        let says_who = !is_own && ending.text.contains("rank 1");
        assert!(says_all || says_who, "rank {rank}, {due:?}: {ending:?}");
    }
}

fn assert_good(both: &[(&'static str, &str)], odd: &[(&'static str, &str)]) {
    for (rank, ending) in endings(both, odd) {
        let outcome = (ending.class.as_str(), ending.good, ending.due);
        assert_eq!(outcome, ("", 40, 0), "rank {rank}: {ending:?}");
    }
}

#[test]
fn a_lost_completion_and_a_dead_device_are_named() {
    for at in [150, 400] {
        let fault = format!("overrun@{at}");
        assert_said(&[], &[("SOFTVERBS_FAULTS", &fault)], &["ibv_poll_cq"]);
        let fault = format!("fatal@{at}");
        let due = ["the device soft", "local catastrophic error"];
        assert_said(&[], &[("SOFTVERBS_FAULTS", &fault)], &due);
    }
}

#[test]
fn a_cut_cable_is_a_broken_connection_with_its_device() {
    let due = ["over soft", "failed", "transport retry counter exceeded"];
    for at in ["cut@20", "cut@300"] {
        for (_, ending) in endings(&[], &[("SOFTVERBS_FAULTS", at)]) {
            let says = due.iter().all(|due| ending.text.contains(due));
            assert!(ending.class == "PeerFailed" && says, "{at}: {ending:?}");
        }
    }
}

#[test]
fn a_port_that_goes_down_and_up_is_no_failure() {
    assert_good(&[], &[("SOFTVERBS_FAULTS", "flap@200")]);
}

#[test]
fn ports_of_different_packets_use_the_smaller() {
    assert_good(&[], &[("SOFTVERBS_MTU", "1024")]);
    assert_good(&[("SOFTVERBS_MTU", "256")], &[("SOFTVERBS_MTU", "2048")]);
}

#[test]
fn too_little_locked_memory_is_said_with_the_limit() {
    let due = ["ibv_reg_mr", "ulimit -l", "memlock=-1"];
    assert_said(&[], &[("SOFTVERBS_MEMLOCK", "65536")], &due);
}

#[test]
fn a_port_that_cannot_be_used_is_named_with_the_reason() {
    let due = ["soft0:1", "soft1:1", "no address for RoCE v2", "IP address"];
    assert_said(&[], &[("SOFTVERBS_LINK", "ethernet")], &due);
    let due = ["soft0:1: port is down", "soft1:1: port is down"];
    assert_said(&[], &[("SOFTVERBS_PORT", "down")], &due);
    let due = ["RINGFOLD_IB_HCA=mlx9", "soft0", "soft1"];
    assert_said(&[], &[("RINGFOLD_IB_HCA", "mlx9")], &due);
    let due = ["ibv_modify_qp", "RINGFOLD_IB_PKEY=3"];
    assert_said(&[("RINGFOLD_IB_PKEY", "3")], &[], &due);
    let due = ["RINGFOLD_IB_GID_INDEX", "soft0:1", "soft1:1"];
    assert_said(&[("RINGFOLD_IB_GID_INDEX", "5")], &[], &due);
}

#[test]
fn a_device_that_may_not_be_opened_is_named_with_the_containers_flag() {
    for error in ["EACCES", "EPERM"] {
        let fault = format!("open_device@1={error}");
        let variables = [
            ("SOFTVERBS_FAULTS", fault.as_str()),
            ("RINGFOLD_IB_HCA", "soft0"),
        ];
        let due = ["soft0", "ibv_open_device", "--device=/dev/infiniband"];
        assert_said(&[], &variables, &due);
    }
}

/// A data loader's worker that ends neither ends its parent's connections nor hangs.
#[test]
fn a_forked_child_that_drops_its_copy_leaves_the_connections_alone() {
    let calls = Script {
        iterations: 20,
        ..script("all_reduce", 1 << 20)
    };
    let parent = Script {
        act: "fork_and_drop".into(),
        at: 5,
        ..calls.clone()
    };
    for forking in [0, 1] {
        let plan = Plan::new(2, "rdma", calls.clone());
        for (rank, ending) in plan.start_with(forking, &parent).finish() {
            let outcome = (ending.class.as_str(), ending.good);
            assert_eq!(outcome, ("", 20), "rank {rank}: {ending:?}");
        }
    }
}
